"""Jobs of pybatchintory: reading its inventory, and making jobs and batches of it here."""
