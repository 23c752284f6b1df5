"""The PostgreSQL server: the embedded one, connections, what goes wrong. No job is known here."""
