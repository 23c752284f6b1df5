"""The steps that make decisions: one verb each, with ports as input and values as output."""
