"""From the bytes of a landed file to chunks of records."""
