"""The S3 resource of streams that land in a bucket.

A module of its own, imported when a stream needs it: importing dagster-aws takes half a second.
"""

import os
from typing import Any

from dagster_aws.s3 import S3Resource

from batch_pipeline.storage import s3_client


class StoreResource(S3Resource):
    """S3 as the environment of AWS describes it: endpoint, region and profile.

    Keys are not configured here; boto3 finds them. Clients retry as those of the pipeline do, which
    ends before Dagster's limit for a sensor tick.
    """

    @classmethod
    def of_environment(cls) -> "StoreResource":
        """Build the resource from the variables of this process, without connecting."""
        get = os.environ.get
        endpoint = get("AWS_ENDPOINT_URL_S3") or get("AWS_ENDPOINT_URL") or ""
        return cls(
            # An endpoint with a user or password is left to the environment: Dagster would show it.
            endpoint_url=None if "@" in endpoint else endpoint or None,
            region_name=get("AWS_REGION") or get("AWS_DEFAULT_REGION"),
            profile_name=get("AWS_PROFILE"),
        )

    def get_client(self) -> Any:
        """Return a client, Dagster's own if more than endpoint, region and profile is set."""
        more = (self.use_unsigned_session, self.aws_access_key_id, self.verify is not None)
        if any(more) or not self.use_ssl:
            return super().get_client()
        return s3_client.new_client(
            region=self.region_name, endpoint=self.endpoint_url, profile=self.profile_name
        )
