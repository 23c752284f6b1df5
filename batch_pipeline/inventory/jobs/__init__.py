"""Jobs: found, steered, and planned again over the past. No attempt is started here."""
