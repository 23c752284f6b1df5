"""Where files land and where part files go. Nothing here reads what is inside a file."""
