"""The schema's revisions and the doctor's looks. No batch is made here."""
