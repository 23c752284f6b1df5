"""Stream maps, selection and flattening, applied to records before they are checked and written."""
