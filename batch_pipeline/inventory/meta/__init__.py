"""Meta tables, the product's and users', and how far they may be read. No job is changed here."""
