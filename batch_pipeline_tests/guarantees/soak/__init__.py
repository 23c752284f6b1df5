"""A `dev` under load for a while: what lands, what is broken meanwhile, and what is measured."""
