"""The schema's revisions, its roles and rights, and the doctor's looks. No batch is made here."""
