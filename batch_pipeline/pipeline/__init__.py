"""The stations of the walk that decide something: one verb each, ports in, values out."""
