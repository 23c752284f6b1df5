"""Tests by what they need: unit (nothing), integration (Postgres, Spark), acceptance (all)."""
