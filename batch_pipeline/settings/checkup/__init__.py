"""Looks at the machine and the settings, each whether one can work with them; changes nothing."""
