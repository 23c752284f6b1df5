"""The S3 resource of streams that land in a bucket.

A module of its own, imported when a stream needs it: importing dagster-aws takes half a second.
"""

import os
from typing import Any

from dagster_aws.s3 import S3Resource

from batch_pipeline.storage import s3_client


class StoreResource(S3Resource):
    """S3 as AWS's own environment describes it: endpoint, region and profile, which one can see.

    Keys are left to AWS's own places. Its clients wait and repeat as the pipeline's other ones do,
    which ends sooner than a tick of a sensor may take.
    """

    @classmethod
    def of_environment(cls) -> "StoreResource":
        """Describe it by the variables of this process; nothing is asked yet."""
        given = os.environ.get
        endpoint = given("AWS_ENDPOINT_URL_S3") or given("AWS_ENDPOINT_URL") or ""
        return cls(
            # One with a user or password is left to the environment: it would be seen.
            endpoint_url=None if "@" in endpoint else endpoint or None,
            region_name=given("AWS_REGION") or given("AWS_DEFAULT_REGION"),
            profile_name=given("AWS_PROFILE"),
        )

    def get_client(self) -> Any:
        """Make a client of S3; who configures more than where it is and who asks has Dagster's."""
        more = (self.use_unsigned_session, self.aws_access_key_id, self.verify is not None)
        if any(more) or not self.use_ssl:
            return super().get_client()
        return s3_client.new_client(
            region=self.region_name, endpoint=self.endpoint_url, profile=self.profile_name
        )
