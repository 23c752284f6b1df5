"""Meta tables: the product's own and those of users, their queries and high watermarks."""
