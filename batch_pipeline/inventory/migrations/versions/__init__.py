"""One file per revision of the inventory schema."""
