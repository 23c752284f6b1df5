"""Dagster jobs that people and schedules launch, besides the materializing of assets."""
