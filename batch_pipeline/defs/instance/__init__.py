"""The Dagster instance of a home: its storage, its servers, the runs that a crash has left."""
