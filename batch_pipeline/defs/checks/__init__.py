"""Asset checks: which asset is asked what, when it is asked, and how Dagster hears the answer."""
