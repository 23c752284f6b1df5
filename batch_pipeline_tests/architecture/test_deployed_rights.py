"""The IAM policies of a deployment allow what the code asks of S3 and SQS, and nothing else."""

import ast
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

import batch_pipeline.stores
from batch_pipeline_tests.architecture.deployed import names, values

STORES = Path(str(batch_pipeline.stores.__file__)).parent
# What a request takes: AWS's "Actions, resources, and condition keys" of S3 and of SQS.
TAKES = {
    "abort_multipart_upload": {"s3:AbortMultipartUpload"},
    "change_message_visibility": {"sqs:ChangeMessageVisibility"},
    "change_message_visibility_batch": {"sqs:ChangeMessageVisibility"},
    "complete_multipart_upload": {"s3:PutObject"},
    "copy_object": {"s3:GetObject", "s3:PutObject"},
    "create_multipart_upload": {"s3:PutObject"},
    "delete_message": {"sqs:DeleteMessage"},
    "delete_message_batch": {"sqs:DeleteMessage"},
    "delete_object": {"s3:DeleteObject"},
    "delete_objects": {"s3:DeleteObject"},
    "get_bucket_location": {"s3:GetBucketLocation"},
    "get_object": {"s3:GetObject"},
    "get_queue_attributes": {"sqs:GetQueueAttributes"},
    "get_queue_url": {"sqs:GetQueueUrl"},
    "head_bucket": {"s3:ListBucket"},
    "head_object": {"s3:GetObject"},
    "list_multipart_uploads": {"s3:ListBucketMultipartUploads"},
    "list_objects_v2": {"s3:ListBucket"},
    "list_parts": {"s3:ListMultipartUploadParts"},
    "put_object": {"s3:PutObject"},
    "receive_message": {"sqs:ReceiveMessage"},
    "upload_part": {"s3:PutObject"},
    "upload_part_copy": {"s3:GetObject", "s3:PutObject"},
}
OF_DAGSTER = "iam-compute-logs.json"  # for dagster-aws, which keeps what steps print
OURS = [name for name in names() if name.startswith("iam-") and name != OF_DAGSTER]
READS = {"s3:GetObject", "s3:ListBucket"}


def test_requests_of_the_code_are_those_that_policies_allow() -> None:
    """Expect all policies together to allow each request that the stores make, and no other."""
    requested = _requested()
    assert requested >= {"put_object", "get_object", "list_objects_v2"}
    assert [name for name in requested if name not in TAKES] == []
    needed = set().union(*(TAKES[name] for name in requested))
    allowed = set().union(*(_allowed(name) for name in OURS))
    assert sorted(allowed) == sorted(needed)


def test_reader_of_a_landing_can_change_nothing() -> None:
    """Expect reading and listing, and no more."""
    assert _allowed("iam-landing-reader.json") == READS


def test_target_lands_without_rights_to_list() -> None:
    """Expect actions on objects only: those that writing one, and taking it back, needs."""
    assert _allowed("iam-landing-writer.json") == {
        "s3:AbortMultipartUpload",
        "s3:DeleteObject",
        "s3:GetObject",
        "s3:PutObject",
    }


def test_storage_is_written_without_rights_on_queues() -> None:
    """Expect actions on objects and their bucket only, all of which the storage needs."""
    assert _allowed("iam-storage-writer.json") == READS | {
        "s3:AbortMultipartUpload",
        "s3:DeleteObject",
        "s3:ListBucketMultipartUploads",
        "s3:PutObject",
    }


@pytest.mark.parametrize("name", [*OURS, OF_DAGSTER])
def test_policy_names_its_actions_and_resources(name: str) -> None:
    """Expect no wildcard in an action, no resource for everything, and the form of a policy."""
    policy = values(name)
    assert policy["Version"] == "2012-10-17"
    for one in policy["Statement"]:
        assert one["Effect"] == "Allow"
        assert [action for action in _listed(one["Action"]) if "*" in action] == []
        for resource in _listed(one["Resource"]):
            assert resource.startswith(("arn:aws:s3:::example-", "arn:aws:sqs:"))
            assert ("/" in resource) == _is_of_objects(one["Action"])


def _requested() -> set[str]:
    """Find requests by their names in the source, as methods, pages or waiters of a client."""
    session = botocore.session.get_session()
    known = {
        xform_name(operation)
        for service in ("s3", "sqs")
        for operation in session.get_service_model(service).operation_names
    }
    found: set[str] = set()
    for path in STORES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found & known


def _allowed(name: str) -> set[str]:
    return {action for one in values(name)["Statement"] for action in _listed(one["Action"])}


def _listed(given: Any) -> list[str]:
    return [given] if isinstance(given, str) else given


def _is_of_objects(actions: Any) -> bool:
    on_buckets = {"s3:ListBucket", "s3:ListBucketMultipartUploads"}
    return not any(one in on_buckets or one.startswith("sqs:") for one in _listed(actions))
