"""Apply stream maps, selection and flattening to records before they are validated."""
