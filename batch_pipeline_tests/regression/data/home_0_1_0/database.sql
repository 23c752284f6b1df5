SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA batch_pipeline;
CREATE SCHEMA ops;
CREATE SCHEMA sales;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE batch_pipeline.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE batch_pipeline.attempt (
    id bigint NOT NULL,
    batch_id bigint NOT NULL,
    number integer NOT NULL,
    token uuid NOT NULL,
    liveness_key bigint NOT NULL,
    status text NOT NULL,
    run_id text NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    renewed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    lease_until timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    error text,
    generation integer,
    publish_number bigint,
    schema_version integer,
    encoding jsonb,
    key_properties jsonb,
    facts jsonb,
    pointer_uri text,
    result jsonb,
    logging text,
    seen jsonb,
    CONSTRAINT attempt_end_has_a_time CHECK (((status = 'running'::text) = (finished_at IS NULL))),
    CONSTRAINT attempt_status_known CHECK ((status = ANY (ARRAY['running'::text, 'succeeded'::text, 'failed'::text, 'abandoned'::text, 'cancelled'::text]))),
    CONSTRAINT attempt_success_is_published CHECK (((status = 'succeeded'::text) = ((generation IS NOT NULL) AND (publish_number IS NOT NULL))))
);
COMMENT ON TABLE batch_pipeline.attempt IS 'Tries at encoding a batch; the row of a succeeded one is the commit point.';
ALTER TABLE batch_pipeline.attempt ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME batch_pipeline.attempt_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE batch_pipeline.attempt_item (
    attempt_id bigint NOT NULL,
    item_id bigint NOT NULL,
    read bigint NOT NULL,
    written bigint NOT NULL,
    filtered bigint NOT NULL,
    quarantined bigint NOT NULL,
    bad_file text,
    read_etag text,
    read_version text,
    CONSTRAINT attempt_item_records_conserved CHECK ((read = ((written + filtered) + quarantined)))
);
COMMENT ON TABLE batch_pipeline.attempt_item IS 'Where the records of each item went in a published attempt.';
CREATE TABLE batch_pipeline.batch (
    id bigint NOT NULL,
    job_id integer NOT NULL,
    first_id bigint NOT NULL,
    last_id bigint NOT NULL,
    weight bigint NOT NULL,
    item_count bigint NOT NULL,
    oversized boolean DEFAULT false NOT NULL,
    config jsonb NOT NULL,
    planned_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    superseded_at timestamp with time zone,
    parent_id bigint,
    item_ids bigint[],
    CONSTRAINT batch_range_not_empty CHECK ((first_id <= last_id))
);
COMMENT ON TABLE batch_pipeline.batch IS 'Planned id ranges, or lists of ids; never changed after planning.';
ALTER TABLE batch_pipeline.batch ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME batch_pipeline.batch_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE batch_pipeline.batch_state (
    batch_id bigint NOT NULL,
    job_id integer NOT NULL,
    state text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    forgiven integer DEFAULT 0 NOT NULL,
    generation integer,
    CONSTRAINT batch_state_state_known CHECK ((state = ANY (ARRAY['planned'::text, 'running'::text, 'published'::text, 'failed'::text, 'interrupted'::text, 'dead'::text, 'cancelled'::text, 'superseded'::text])))
);
COMMENT ON TABLE batch_pipeline.batch_state IS 'Where each batch stands: what its attempts say, kept for those who look for work.';
CREATE TABLE batch_pipeline.bookmark (
    job_id integer NOT NULL,
    first_id bigint NOT NULL,
    last_id bigint NOT NULL,
    CONSTRAINT bookmark_range_not_empty CHECK ((first_id <= last_id))
);
COMMENT ON TABLE batch_pipeline.bookmark IS 'Runs of ids that are planned; only windows leave a job more than one.';
CREATE TABLE batch_pipeline.ceiling_candidate (
    scope text NOT NULL,
    meta_table text NOT NULL,
    state jsonb NOT NULL,
    saved_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
COMMENT ON TABLE batch_pipeline.ceiling_candidate IS 'What ceilings of users'' meta tables remember between looks.';
CREATE TABLE batch_pipeline.job (
    id integer NOT NULL,
    name text NOT NULL,
    meta_table text NOT NULL,
    publish_count bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    kind text DEFAULT 'incremental'::text NOT NULL,
    stream text,
    parent_id integer,
    config jsonb DEFAULT '{}'::jsonb NOT NULL,
    max_attempts integer DEFAULT 3 NOT NULL,
    bisect boolean DEFAULT false NOT NULL,
    paused_at timestamp with time zone,
    paused_reason text,
    CONSTRAINT job_kind_known CHECK ((kind = ANY (ARRAY['incremental'::text, 'backfill'::text, 'late'::text]))),
    CONSTRAINT job_max_attempts_positive CHECK ((max_attempts > 0))
);
COMMENT ON TABLE batch_pipeline.job IS 'A name for work on a meta table; no item is in two live batches of one job.';
CREATE TABLE batch_pipeline.part_file (
    attempt_id bigint NOT NULL,
    quarantine boolean NOT NULL,
    "position" integer NOT NULL,
    uri text NOT NULL,
    records bigint NOT NULL,
    size_bytes bigint NOT NULL,
    sha256 text NOT NULL
);
COMMENT ON TABLE batch_pipeline.part_file IS 'Files of published attempts, as the tasks that wrote them reported them.';
CREATE VIEW batch_pipeline.inventory AS
 SELECT attempt.id,
    job.meta_table,
    job.name AS job,
    NULLIF(attempt.run_id, ''::text) AS job_identifier,
    COALESCE((attempt.result)::json, ( SELECT json_agg(part_file.uri ORDER BY part_file."position") AS json_agg
           FROM batch_pipeline.part_file
          WHERE ((part_file.attempt_id = attempt.id) AND (NOT part_file.quarantine))), '[]'::json) AS job_result_item,
    attempt.started_at AS processing_start,
    attempt.finished_at AS processing_end,
    batch.first_id AS batch_id_start,
    batch.last_id AS batch_id_end,
    batch.weight AS batch_weight,
    batch.item_count AS batch_count,
    attempt.number AS attempt,
    attempt.status,
    NULLIF(concat_ws('
'::text, attempt.logging, attempt.error), ''::text) AS logging,
    (batch.config)::json AS config
   FROM ((batch_pipeline.attempt
     JOIN batch_pipeline.batch ON ((batch.id = attempt.batch_id)))
     JOIN batch_pipeline.job ON ((job.id = batch.job_id)));
COMMENT ON VIEW batch_pipeline.inventory IS 'One row per attempt, for people and reports.';
CREATE TABLE batch_pipeline.item (
    stream text NOT NULL,
    id bigint NOT NULL,
    location text NOT NULL,
    size_bytes bigint NOT NULL,
    modified_at timestamp with time zone NOT NULL,
    etag text,
    registered_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT item_size_not_negative CHECK ((size_bytes >= 0))
);
COMMENT ON TABLE batch_pipeline.item IS 'The meta table of streams whose files this product registers itself.';
ALTER TABLE batch_pipeline.job ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME batch_pipeline.job_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE batch_pipeline.load (
    id bigint NOT NULL,
    attempt_id bigint NOT NULL,
    stream text NOT NULL,
    target text NOT NULL,
    number integer NOT NULL,
    token uuid NOT NULL,
    liveness_key bigint NOT NULL,
    status text NOT NULL,
    run_id text NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    renewed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    lease_until timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    voided_at timestamp with time zone,
    records bigint,
    state jsonb,
    exit_code integer,
    mode text,
    error text,
    log text,
    CONSTRAINT load_end_has_a_time CHECK (((status = 'running'::text) = (finished_at IS NULL))),
    CONSTRAINT load_status_known CHECK ((status = ANY (ARRAY['running'::text, 'succeeded'::text, 'failed'::text, 'interrupted'::text])))
);
COMMENT ON TABLE batch_pipeline.load IS 'Tries at loading published generations into targets, and what the targets said.';
ALTER TABLE batch_pipeline.load ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME batch_pipeline.load_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW batch_pipeline.published AS
 SELECT origin.job,
    attempt.publish_number,
    COALESCE((attempt.result)::json, ( SELECT json_agg(part_file.uri ORDER BY part_file."position") AS json_agg
           FROM batch_pipeline.part_file
          WHERE ((part_file.attempt_id = attempt.id) AND (NOT part_file.quarantine))), '[]'::json) AS job_result_item,
    origin.batch_weight,
    origin.batch_count,
    origin.batch_id_start,
    origin.batch_id_end,
    attempt.generation,
    attempt.finished_at AS published_at,
    origin.meta_table
   FROM (batch_pipeline.attempt
     CROSS JOIN LATERAL ( SELECT job.name AS job,
            batch.weight AS batch_weight,
            batch.item_count AS batch_count,
            batch.first_id AS batch_id_start,
            batch.last_id AS batch_id_end,
            job.meta_table
           FROM (batch_pipeline.batch
             JOIN batch_pipeline.job ON ((job.id = batch.job_id)))
          WHERE (batch.id = attempt.batch_id)
         OFFSET 0) origin)
  WHERE (attempt.publish_number IS NOT NULL);
COMMENT ON VIEW batch_pipeline.published IS 'What each job has published, in publish order: the meta table of jobs that go on from there.';
CREATE TABLE batch_pipeline.schema_version (
    job_id integer NOT NULL,
    version integer NOT NULL,
    columns jsonb NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    item_id bigint,
    location text,
    line bigint,
    changes jsonb,
    declared jsonb
);
COMMENT ON TABLE batch_pipeline.schema_version IS 'The columns of a stream''s records, widening from version to version.';
CREATE TABLE batch_pipeline.target_probe (
    command text NOT NULL,
    version text NOT NULL,
    verdict jsonb NOT NULL,
    probed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
COMMENT ON TABLE batch_pipeline.target_probe IS 'Which messages Singer targets can read, found by looking into what is installed.';
CREATE TABLE ops.files (
    id bigint NOT NULL,
    location text NOT NULL,
    size_in_bytes bigint NOT NULL
);
ALTER TABLE ops.files ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME ops.files_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.asset_check_executions (
    id bigint NOT NULL,
    asset_key text,
    check_name text,
    partition text,
    run_id character varying(255),
    execution_status character varying(255),
    evaluation_event text,
    evaluation_event_timestamp timestamp without time zone,
    evaluation_event_storage_id bigint,
    materialization_event_storage_id bigint,
    create_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP
);
CREATE SEQUENCE public.asset_check_executions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.asset_check_executions_id_seq OWNED BY public.asset_check_executions.id;
CREATE TABLE public.asset_daemon_asset_evaluations (
    id bigint NOT NULL,
    evaluation_id bigint,
    asset_key text,
    asset_evaluation_body text,
    num_requested integer,
    num_skipped integer,
    num_discarded integer,
    create_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP
);
CREATE SEQUENCE public.asset_daemon_asset_evaluations_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.asset_daemon_asset_evaluations_id_seq OWNED BY public.asset_daemon_asset_evaluations.id;
CREATE TABLE public.asset_event_tags (
    id bigint NOT NULL,
    event_id bigint,
    asset_key text NOT NULL,
    key text NOT NULL,
    value text,
    event_timestamp timestamp without time zone
);
CREATE SEQUENCE public.asset_event_tags_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.asset_event_tags_id_seq OWNED BY public.asset_event_tags.id;
CREATE TABLE public.asset_keys (
    id bigint NOT NULL,
    asset_key character varying(512),
    last_materialization text,
    last_run_id character varying(255),
    asset_details text,
    wipe_timestamp timestamp without time zone,
    last_materialization_timestamp timestamp without time zone,
    tags text,
    create_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP,
    cached_status_data text
);
CREATE SEQUENCE public.asset_keys_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.asset_keys_id_seq OWNED BY public.asset_keys.id;
CREATE TABLE public.backfill_tags (
    id bigint NOT NULL,
    backfill_id character varying(255),
    key text,
    value text
);
CREATE SEQUENCE public.backfill_tags_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.backfill_tags_id_seq OWNED BY public.backfill_tags.id;
CREATE TABLE public.bulk_actions (
    id bigint NOT NULL,
    key character varying(32) NOT NULL,
    status character varying(255) NOT NULL,
    "timestamp" timestamp without time zone NOT NULL,
    body text,
    action_type character varying(32),
    selector_id text,
    job_name text
);
CREATE SEQUENCE public.bulk_actions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.bulk_actions_id_seq OWNED BY public.bulk_actions.id;
CREATE TABLE public.concurrency_limits (
    id bigint NOT NULL,
    concurrency_key character varying(512) NOT NULL,
    "limit" integer NOT NULL,
    using_default_limit boolean DEFAULT false NOT NULL,
    update_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP,
    create_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP
);
CREATE SEQUENCE public.concurrency_limits_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.concurrency_limits_id_seq OWNED BY public.concurrency_limits.id;
CREATE TABLE public.concurrency_slots (
    id bigint NOT NULL,
    concurrency_key text NOT NULL,
    run_id text,
    step_key text,
    deleted boolean NOT NULL,
    create_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP
);
CREATE SEQUENCE public.concurrency_slots_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.concurrency_slots_id_seq OWNED BY public.concurrency_slots.id;
CREATE TABLE public.daemon_heartbeats (
    id bigint NOT NULL,
    daemon_type character varying(255) NOT NULL,
    daemon_id character varying(255),
    "timestamp" timestamp without time zone NOT NULL,
    body text
);
CREATE SEQUENCE public.daemon_heartbeats_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.daemon_heartbeats_id_seq OWNED BY public.daemon_heartbeats.id;
CREATE TABLE public.dynamic_partitions (
    id bigint NOT NULL,
    partitions_def_name text NOT NULL,
    partition text NOT NULL,
    create_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP
);
CREATE SEQUENCE public.dynamic_partitions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.dynamic_partitions_id_seq OWNED BY public.dynamic_partitions.id;
CREATE TABLE public.event_logs (
    id bigint NOT NULL,
    run_id character varying(255),
    event text NOT NULL,
    dagster_event_type text,
    "timestamp" timestamp without time zone,
    step_key text,
    asset_key text,
    partition text
);
CREATE SEQUENCE public.event_logs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.event_logs_id_seq OWNED BY public.event_logs.id;
CREATE TABLE public.instance_info (
    id bigint NOT NULL,
    run_storage_id text
);
CREATE SEQUENCE public.instance_info_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.instance_info_id_seq OWNED BY public.instance_info.id;
CREATE TABLE public.instigators (
    id bigint NOT NULL,
    selector_id character varying(255),
    repository_selector_id character varying(255),
    status character varying(63),
    instigator_type character varying(63),
    instigator_body text,
    create_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP,
    update_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP
);
CREATE SEQUENCE public.instigators_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.instigators_id_seq OWNED BY public.instigators.id;
CREATE TABLE public.job_ticks (
    id bigint NOT NULL,
    job_origin_id character varying(255),
    selector_id character varying(255),
    status character varying(63),
    type character varying(63),
    "timestamp" timestamp without time zone,
    tick_body text,
    create_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP,
    update_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP
);
CREATE SEQUENCE public.job_ticks_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.job_ticks_id_seq OWNED BY public.job_ticks.id;
CREATE TABLE public.jobs (
    id bigint NOT NULL,
    job_origin_id character varying(255),
    selector_id character varying(255),
    repository_origin_id character varying(255),
    status character varying(63),
    job_type character varying(63),
    job_body text,
    create_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP,
    update_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP
);
CREATE SEQUENCE public.jobs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.jobs_id_seq OWNED BY public.jobs.id;
CREATE TABLE public.kvs (
    id bigint NOT NULL,
    key text NOT NULL,
    value text
);
CREATE SEQUENCE public.kvs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.kvs_id_seq OWNED BY public.kvs.id;
CREATE TABLE public.pending_steps (
    id bigint NOT NULL,
    concurrency_key text NOT NULL,
    run_id text,
    step_key text,
    priority integer,
    assigned_timestamp timestamp without time zone,
    create_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP
);
CREATE SEQUENCE public.pending_steps_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.pending_steps_id_seq OWNED BY public.pending_steps.id;
CREATE TABLE public.run_tags (
    id bigint NOT NULL,
    run_id character varying(255),
    key text,
    value text
);
CREATE SEQUENCE public.run_tags_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.run_tags_id_seq OWNED BY public.run_tags.id;
CREATE TABLE public.runs (
    id bigint NOT NULL,
    run_id character varying(255),
    snapshot_id character varying(255),
    pipeline_name text,
    mode text,
    status character varying(63),
    run_body text,
    partition text,
    partition_set text,
    create_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP,
    update_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP,
    start_time double precision,
    end_time double precision,
    backfill_id character varying(255)
);
CREATE SEQUENCE public.runs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.runs_id_seq OWNED BY public.runs.id;
CREATE TABLE public.secondary_indexes (
    id bigint NOT NULL,
    name character varying(512),
    create_timestamp timestamp without time zone DEFAULT CURRENT_TIMESTAMP,
    migration_completed timestamp without time zone
);
CREATE SEQUENCE public.secondary_indexes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.secondary_indexes_id_seq OWNED BY public.secondary_indexes.id;
CREATE TABLE public.snapshots (
    id bigint NOT NULL,
    snapshot_id character varying(255) NOT NULL,
    snapshot_body bytea NOT NULL,
    snapshot_type character varying(63) NOT NULL
);
CREATE SEQUENCE public.snapshots_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.snapshots_id_seq OWNED BY public.snapshots.id;
CREATE TABLE sales.batch_pipeline_column (
    table_name text NOT NULL,
    column_name text NOT NULL
);
CREATE TABLE sales.batch_pipeline_load (
    table_name text NOT NULL,
    stream text NOT NULL,
    batch text NOT NULL,
    generation integer NOT NULL,
    token uuid NOT NULL,
    publish_number bigint NOT NULL,
    records bigint NOT NULL,
    loaded_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE sales.orders (
    _item_id bigint,
    order_id bigint,
    city text,
    price double precision,
    _batch_id text,
    _batch_order bigint,
    _sdc_extracted_at timestamp with time zone,
    _sdc_received_at timestamp with time zone,
    _sdc_batched_at timestamp with time zone,
    _sdc_deleted_at timestamp with time zone,
    _sdc_sequence bigint,
    _sdc_table_version bigint
)
WITH (toast_tuple_target='4080');
ALTER TABLE ONLY public.asset_check_executions ALTER COLUMN id SET DEFAULT nextval('public.asset_check_executions_id_seq'::regclass);
ALTER TABLE ONLY public.asset_daemon_asset_evaluations ALTER COLUMN id SET DEFAULT nextval('public.asset_daemon_asset_evaluations_id_seq'::regclass);
ALTER TABLE ONLY public.asset_event_tags ALTER COLUMN id SET DEFAULT nextval('public.asset_event_tags_id_seq'::regclass);
ALTER TABLE ONLY public.asset_keys ALTER COLUMN id SET DEFAULT nextval('public.asset_keys_id_seq'::regclass);
ALTER TABLE ONLY public.backfill_tags ALTER COLUMN id SET DEFAULT nextval('public.backfill_tags_id_seq'::regclass);
ALTER TABLE ONLY public.bulk_actions ALTER COLUMN id SET DEFAULT nextval('public.bulk_actions_id_seq'::regclass);
ALTER TABLE ONLY public.concurrency_limits ALTER COLUMN id SET DEFAULT nextval('public.concurrency_limits_id_seq'::regclass);
ALTER TABLE ONLY public.concurrency_slots ALTER COLUMN id SET DEFAULT nextval('public.concurrency_slots_id_seq'::regclass);
ALTER TABLE ONLY public.daemon_heartbeats ALTER COLUMN id SET DEFAULT nextval('public.daemon_heartbeats_id_seq'::regclass);
ALTER TABLE ONLY public.dynamic_partitions ALTER COLUMN id SET DEFAULT nextval('public.dynamic_partitions_id_seq'::regclass);
ALTER TABLE ONLY public.event_logs ALTER COLUMN id SET DEFAULT nextval('public.event_logs_id_seq'::regclass);
ALTER TABLE ONLY public.instance_info ALTER COLUMN id SET DEFAULT nextval('public.instance_info_id_seq'::regclass);
ALTER TABLE ONLY public.instigators ALTER COLUMN id SET DEFAULT nextval('public.instigators_id_seq'::regclass);
ALTER TABLE ONLY public.job_ticks ALTER COLUMN id SET DEFAULT nextval('public.job_ticks_id_seq'::regclass);
ALTER TABLE ONLY public.jobs ALTER COLUMN id SET DEFAULT nextval('public.jobs_id_seq'::regclass);
ALTER TABLE ONLY public.kvs ALTER COLUMN id SET DEFAULT nextval('public.kvs_id_seq'::regclass);
ALTER TABLE ONLY public.pending_steps ALTER COLUMN id SET DEFAULT nextval('public.pending_steps_id_seq'::regclass);
ALTER TABLE ONLY public.run_tags ALTER COLUMN id SET DEFAULT nextval('public.run_tags_id_seq'::regclass);
ALTER TABLE ONLY public.runs ALTER COLUMN id SET DEFAULT nextval('public.runs_id_seq'::regclass);
ALTER TABLE ONLY public.secondary_indexes ALTER COLUMN id SET DEFAULT nextval('public.secondary_indexes_id_seq'::regclass);
ALTER TABLE ONLY public.snapshots ALTER COLUMN id SET DEFAULT nextval('public.snapshots_id_seq'::regclass);
INSERT INTO batch_pipeline.alembic_version VALUES
	('0006');
INSERT INTO batch_pipeline.attempt OVERRIDING SYSTEM VALUE VALUES
	(1, 1, 1, 'a1f2be74-4919-4d0c-97e8-9c5dbd5df6b1', 4029468264069871461, 'succeeded', '490ecf1f-268f-4de3-96a4-dc630a5ea3dd', '2026-01-31 20:51:36.148854+00', '2026-01-31 20:51:36.148854+00', '2026-01-31 20:56:36.148854+00', '2026-01-31 20:51:44.657311+00', NULL, 1, 1, 1, '{"format": "parquet", "compression": "snappy"}', '["id"]', '{"read": 4, "items": 2, "rescued": 0, "written": 4, "filtered": 0, "quarantined": 0}', 'file:///srv/release-0.1.0/batches/invoices/manifests/invoices-000000000001-000000000002.g1.json', NULL, NULL, '{"runs": [[1, 2]], "count": 2, "weight": 266, "fingerprint": 9}'),
	(2, 2, 1, 'fefea742-7d92-48a7-b57f-2f2eb133ba9f', 4029468264069871461, 'succeeded', '490ecf1f-268f-4de3-96a4-dc630a5ea3dd', '2026-01-31 20:51:44.771025+00', '2026-01-31 20:51:44.771025+00', '2026-01-31 20:56:44.771025+00', '2026-01-31 20:51:44.937142+00', NULL, 1, 2, 1, '{"format": "parquet", "compression": "snappy"}', '["id"]', '{"read": 4, "items": 2, "rescued": 0, "written": 4, "filtered": 0, "quarantined": 0}', 'file:///srv/release-0.1.0/batches/invoices/manifests/invoices-000000000003-000000000005.g1.json', NULL, NULL, '{"runs": [[3, 3], [5, 5]], "count": 2, "weight": 266, "fingerprint": 152}'),
	(3, 3, 1, '5617f084-a98a-472a-8293-7966803c95a4', 157784509714606894, 'succeeded', 'ee28f209-9530-4762-a86d-bdfd6495b127', '2026-01-31 20:51:46.657134+00', '2026-01-31 20:51:46.657134+00', '2026-01-31 20:56:46.657134+00', '2026-01-31 20:51:47.566442+00', NULL, 1, 1, 2, '{"format": "jsonl", "compression": "gzip"}', '["order_id"]', '{"read": 6, "items": 2, "rescued": 0, "written": 6, "filtered": 0, "quarantined": 0}', 'file:///srv/release-0.1.0/batches/orders/manifests/orders-000000000001-000000000002.g1.json', NULL, NULL, '{"runs": [[1, 2]], "count": 2, "weight": 118, "fingerprint": 9}'),
	(4, 4, 1, '3887db59-e26a-4b96-bd34-4e94bfaa450c', 157784509714606894, 'succeeded', 'ee28f209-9530-4762-a86d-bdfd6495b127', '2026-01-31 20:51:47.638085+00', '2026-01-31 20:51:47.638085+00', '2026-01-31 20:56:47.638085+00', '2026-01-31 20:51:47.813384+00', NULL, 1, 2, 2, '{"format": "jsonl", "compression": "gzip"}', '["order_id"]', '{"read": 7, "items": 2, "rescued": 0, "written": 6, "filtered": 0, "quarantined": 1}', 'file:///srv/release-0.1.0/batches/orders/manifests/orders-000000000003-000000000004.g1.json', NULL, NULL, '{"runs": [[3, 4]], "count": 2, "weight": 125, "fingerprint": 91}'),
	(5, 3, 2, 'e59fbe85-49e3-41b2-8a40-e2b13aa3b33b', 7558519328472481160, 'succeeded', '64a27a20-2184-49ff-b53a-d96fe6a8dc01', '2026-01-31 20:51:55.691705+00', '2026-01-31 20:51:55.691705+00', '2026-01-31 20:56:55.691705+00', '2026-01-31 20:51:55.853167+00', NULL, 2, 3, 2, '{"format": "jsonl", "compression": "gzip"}', '["order_id"]', '{"read": 6, "items": 2, "rescued": 0, "written": 6, "filtered": 0, "quarantined": 0}', 'file:///srv/release-0.1.0/batches/orders/manifests/orders-000000000001-000000000002.g2.json', NULL, NULL, '{"runs": [[1, 2]], "count": 2, "weight": 118, "fingerprint": 9}'),
	(6, 5, 1, '332a0af8-6c24-4642-88fe-34b5d900344b', 837291070389340826, 'succeeded', '2dda0ea4-e18e-4f78-aa09-1fd04a7b6db6', '2026-01-31 20:52:06.030794+00', '2026-01-31 20:52:06.030794+00', '2026-01-31 20:57:06.030794+00', '2026-01-31 20:52:06.210074+00', NULL, 1, 1, 2, '{"format": "jsonl", "compression": "gzip"}', '["order_id"]', '{"read": 6, "items": 2, "rescued": 0, "written": 6, "filtered": 0, "quarantined": 0}', 'file:///srv/release-0.1.0/batches/orders/manifests/orders.2023-000000000001-000000000002.g1.json', NULL, NULL, '{"runs": [[1, 2]], "count": 2, "weight": 118, "fingerprint": 9}'),
	(7, 6, 1, 'a969a120-0281-4d05-ac93-8f6bda4ca4c6', 837291070389340826, 'succeeded', '2dda0ea4-e18e-4f78-aa09-1fd04a7b6db6', '2026-01-31 20:52:06.363671+00', '2026-01-31 20:52:06.363671+00', '2026-01-31 20:57:06.363671+00', '2026-01-31 20:52:06.496574+00', NULL, 1, 2, 2, '{"format": "jsonl", "compression": "gzip"}', '["order_id"]', '{"read": 4, "items": 1, "rescued": 0, "written": 3, "filtered": 0, "quarantined": 1}', 'file:///srv/release-0.1.0/batches/orders/manifests/orders.2023-000000000003-000000000003.g1.json', NULL, NULL, '{"runs": [[3, 3]], "count": 1, "weight": 66, "fingerprint": 27}'),
	(8, 7, 1, 'f7d48fbb-1c06-4b9d-87d6-db63d50d0c41', 1891974129334521048, 'succeeded', '79af9e75-ba1b-407a-8793-f06c5be35dd4', '2026-01-31 20:52:20.842187+00', '2026-01-31 20:52:20.842187+00', '2026-01-31 20:57:20.842187+00', '2026-01-31 20:52:21.311285+00', NULL, 1, 1, 1, '{"format": "parquet", "compression": "snappy"}', '["id"]', '{"read": 2, "items": 1, "rescued": 0, "written": 2, "filtered": 0, "quarantined": 0}', 'file:///srv/release-0.1.0/batches/invoices/manifests/invoices.late-000000000004-000000000004.g1.json', NULL, NULL, '{"runs": [[4, 4]], "count": 1, "weight": 133, "fingerprint": 64}'),
	(9, 8, 1, '23031fc4-a949-4e23-9794-b0961691dbcc', 4482668568193392353, 'failed', '0e2e3627-30b7-45db-93b5-cd89989833ce', '2026-01-31 20:52:36.189379+00', '2026-01-31 20:52:36.189379+00', '2026-01-31 20:57:36.189379+00', '2026-01-31 20:52:36.874039+00', 'orders: file:///srv/release-0.1.0/landing/orders/orders-5.csv: line 1: header: column ''order_id'' is there twice. Nothing of this batch was published. Repair the file and register it with `batch-pipeline register orders --accept-changed`, or set `on_bad_file: quarantine` to publish the rest without it; then run again.', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	(10, 9, 1, '7b6f02d8-2fc3-4979-b37a-627be8f45564', 7902580482437357261, 'failed', 'da5e194f-7201-4b7d-aa53-9de4eb2b21f5', '2026-01-31 20:52:53.642183+00', '2026-01-31 20:52:53.642183+00', '2026-01-31 20:57:53.642183+00', '2026-01-31 20:52:53.797558+00', 'orders: file:///srv/release-0.1.0/landing/orders/orders-5.csv: line 1: header: column ''order_id'' is there twice. Nothing of this batch was published. Repair the file and register it with `batch-pipeline register orders --accept-changed`, or set `on_bad_file: quarantine` to publish the rest without it; then run again.', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
	(11, 10, 1, 'fe317ea6-c372-4578-a8f4-a0d4abb46bba', 7902580482437357261, 'succeeded', 'da5e194f-7201-4b7d-aa53-9de4eb2b21f5', '2026-01-31 20:52:53.819485+00', '2026-01-31 20:52:53.819486+00', '2026-01-31 20:57:53.819486+00', '2026-01-31 20:52:53.947694+00', NULL, 1, 4, 2, '{"format": "jsonl", "compression": "gzip"}', '["order_id"]', '{"read": 3, "items": 1, "rescued": 0, "written": 3, "filtered": 0, "quarantined": 0}', 'file:///srv/release-0.1.0/batches/orders/manifests/orders-000000000006-000000000006.g1.json', NULL, NULL, '{"runs": [[6, 6]], "count": 1, "weight": 59, "fingerprint": 216}'),
	(12, 9, 2, '91264582-4838-405f-8b08-545dd2e0caac', 7949910375995591918, 'succeeded', '2ab247f4-6a2b-4893-94f9-be50eaa6e24a', '2026-01-31 20:53:16.853572+00', '2026-01-31 20:53:16.853572+00', '2026-01-31 20:58:16.853572+00', '2026-01-31 20:53:17.217035+00', NULL, 1, 5, 2, '{"format": "jsonl", "compression": "gzip"}', '["order_id"]', '{"read": 3, "items": 1, "rescued": 0, "written": 3, "filtered": 0, "quarantined": 0}', 'file:///srv/release-0.1.0/batches/orders/manifests/orders-000000000005-000000000005.g1.json', NULL, NULL, '{"runs": [[5, 5]], "count": 1, "weight": 59, "fingerprint": 125}');
INSERT INTO batch_pipeline.attempt_item VALUES
	(1, 1, 2, 2, 0, 0, NULL, NULL, NULL),
	(1, 2, 2, 2, 0, 0, NULL, NULL, NULL),
	(2, 3, 2, 2, 0, 0, NULL, NULL, NULL),
	(2, 5, 2, 2, 0, 0, NULL, NULL, NULL),
	(3, 1, 3, 3, 0, 0, NULL, NULL, NULL),
	(3, 2, 3, 3, 0, 0, NULL, NULL, NULL),
	(4, 3, 4, 3, 0, 1, NULL, NULL, NULL),
	(4, 4, 3, 3, 0, 0, NULL, NULL, NULL),
	(5, 1, 3, 3, 0, 0, NULL, NULL, NULL),
	(5, 2, 3, 3, 0, 0, NULL, NULL, NULL),
	(6, 1, 3, 3, 0, 0, NULL, NULL, NULL),
	(6, 2, 3, 3, 0, 0, NULL, NULL, NULL),
	(7, 3, 4, 3, 0, 1, NULL, NULL, NULL),
	(8, 4, 2, 2, 0, 0, NULL, NULL, NULL),
	(11, 6, 3, 3, 0, 0, NULL, NULL, NULL),
	(12, 5, 3, 3, 0, 0, NULL, NULL, NULL);
INSERT INTO batch_pipeline.batch OVERRIDING SYSTEM VALUE VALUES
	(1, 1, 1, 2, 266, 2, false, '{"max_wait": "0:05:00", "max_count": "2", "max_weight": "67108864", "min_weight": "0"}', '2026-01-31 20:51:33.30429+00', NULL, NULL, NULL),
	(2, 1, 3, 5, 266, 2, false, '{"max_wait": "0:05:00", "max_count": "2", "max_weight": "67108864", "min_weight": "0"}', '2026-01-31 20:51:33.304451+00', NULL, NULL, NULL),
	(3, 2, 1, 2, 118, 2, false, '{"max_wait": "0:05:00", "max_count": "2", "max_weight": "67108864", "min_weight": "0"}', '2026-01-31 20:51:45.917029+00', NULL, NULL, NULL),
	(4, 2, 3, 4, 125, 2, false, '{"max_wait": "0:05:00", "max_count": "2", "max_weight": "67108864", "min_weight": "0"}', '2026-01-31 20:51:45.917133+00', NULL, NULL, NULL),
	(5, 3, 1, 2, 118, 2, false, '{"max_wait": "0:05:00", "max_count": "2", "selection": {"last_id": 3, "first_id": 1}, "max_weight": "67108864", "min_weight": "0"}', '2026-01-31 20:51:59.359712+00', NULL, NULL, NULL),
	(6, 3, 3, 3, 66, 1, false, '{"max_wait": "0:05:00", "max_count": "2", "selection": {"last_id": 3, "first_id": 1}, "max_weight": "67108864", "min_weight": "0"}', '2026-01-31 20:51:59.359827+00', NULL, NULL, NULL),
	(7, 4, 4, 4, 133, 1, false, '{"late": true, "max_count": "2", "max_weight": "67108864", "batch_id_max": null, "batch_id_min": null}', '2026-01-31 20:52:11.794906+00', NULL, NULL, '{4}'),
	(8, 2, 5, 6, 83, 2, false, '{"max_wait": "0:05:00", "max_count": "2", "max_weight": "67108864", "min_weight": "0"}', '2026-01-31 20:52:33.535729+00', '2026-01-31 20:52:44.69211+00', NULL, NULL),
	(9, 2, 5, 5, 24, 1, false, '{"max_wait": "0:05:00", "max_count": "2", "max_weight": "67108864", "min_weight": "0"}', '2026-01-31 20:52:44.697946+00', NULL, 8, NULL),
	(10, 2, 6, 6, 59, 1, false, '{"max_wait": "0:05:00", "max_count": "2", "max_weight": "67108864", "min_weight": "0"}', '2026-01-31 20:52:44.698886+00', NULL, 8, NULL),
	(11, 2, 7, 7, 59, 1, false, '{"max_wait": "0:05:00", "max_count": "2", "max_weight": "67108864", "min_weight": "0"}', '2026-01-31 20:53:59.620131+00', NULL, NULL, NULL);
INSERT INTO batch_pipeline.batch_state VALUES
	(1, 1, 'published', 1, 0, 1),
	(2, 1, 'published', 1, 0, 1),
	(4, 2, 'published', 1, 0, 1),
	(3, 2, 'published', 2, 0, 2),
	(5, 3, 'published', 1, 0, 1),
	(6, 3, 'published', 1, 0, 1),
	(7, 4, 'published', 1, 0, 1),
	(8, 2, 'superseded', 1, 0, NULL),
	(10, 2, 'published', 1, 0, 1),
	(9, 2, 'published', 2, 1, 1),
	(11, 2, 'planned', 0, 0, NULL);
INSERT INTO batch_pipeline.bookmark VALUES
	(1, -9223372036854775808, 5),
	(3, 1, 3),
	(2, -9223372036854775808, 7);
INSERT INTO batch_pipeline.ceiling_candidate VALUES
	('postgresql /srv/server/postgres/home', 'ops.files', '{"epoch": "2026-01-31 20:51:11.340204+00 16384 16388 16388", "waiting": [], "released": 5, "strategy": "locks"}', '2026-01-31 20:51:33.277074+00');
INSERT INTO batch_pipeline.item VALUES
	('orders', 1, 'file:///srv/release-0.1.0/landing/orders/orders-1.csv', 59, '2025-06-15 15:06:40+00', NULL, '2026-01-31 20:51:45.877183+00'),
	('orders', 2, 'file:///srv/release-0.1.0/landing/orders/orders-2.csv', 59, '2025-06-15 15:06:40+00', NULL, '2026-01-31 20:51:45.877305+00'),
	('orders', 3, 'file:///srv/release-0.1.0/landing/orders/orders-3.csv', 66, '2025-06-15 15:06:40+00', NULL, '2026-01-31 20:51:45.877324+00'),
	('orders', 4, 'file:///srv/release-0.1.0/landing/orders/orders-4.csv', 59, '2025-06-15 15:06:40+00', NULL, '2026-01-31 20:51:45.877338+00'),
	('orders', 6, 'file:///srv/release-0.1.0/landing/orders/orders-6.csv', 59, '2025-06-15 15:06:40+00', NULL, '2026-01-31 20:52:33.47901+00'),
	('orders', 5, 'file:///srv/release-0.1.0/landing/orders/orders-5.csv', 59, '2025-06-15 15:06:40+00', NULL, '2026-01-31 20:52:33.478914+00'),
	('orders', 7, 'file:///srv/release-0.1.0/landing/orders/orders-7.csv', 59, '2025-06-15 15:06:40+00', NULL, '2026-01-31 20:53:40.462759+00');
INSERT INTO batch_pipeline.job OVERRIDING SYSTEM VALUE VALUES
	(1, 'invoices', 'ops.files', 2, '2026-01-31 20:51:33.249884+00', 'incremental', 'invoices', NULL, '{}', 3, false, NULL, NULL),
	(3, 'orders.2023', 'batch_pipeline.item', 2, '2026-01-31 20:51:59.340437+00', 'backfill', 'orders', 2, '{"limits": {"max_count": 2, "max_weight": 67108864}, "selection": {"last_id": 3, "first_id": 1}}', 3, false, NULL, NULL),
	(4, 'invoices.late', 'ops.files', 1, '2026-01-31 20:52:11.786784+00', 'late', 'invoices', 1, '{}', 3, false, NULL, NULL),
	(2, 'orders', 'batch_pipeline.item', 5, '2026-01-31 20:51:45.882688+00', 'incremental', 'orders', NULL, '{}', 3, false, NULL, NULL);
INSERT INTO batch_pipeline.load OVERRIDING SYSTEM VALUE VALUES
	(1, 4, 'orders', 'warehouse', 1, '4672b308-6f53-4e4c-ac9e-c8f79aacecd9', 2402950194539522598, 'succeeded', 'load-be03f7ab24ca', '2026-01-31 20:53:28.188575+00', '2026-01-31 20:53:28.188575+00', '2026-01-31 20:58:28.188575+00', '2026-01-31 20:53:28.316155+00', NULL, 6, '{}', NULL, NULL, NULL, NULL),
	(2, 5, 'orders', 'warehouse', 1, 'f3919f14-0a5f-4fdc-916b-b00823cba3fe', 2402950194539522598, 'succeeded', 'load-be03f7ab24ca', '2026-01-31 20:53:28.372671+00', '2026-01-31 20:53:28.372671+00', '2026-01-31 20:58:28.372671+00', '2026-01-31 20:53:28.457861+00', NULL, 6, '{}', NULL, NULL, NULL, NULL),
	(3, 6, 'orders', 'warehouse', 1, '7fecaec5-4ece-4b8c-b1fe-1f781dde225c', 2402950194539522598, 'succeeded', 'load-be03f7ab24ca', '2026-01-31 20:53:28.512021+00', '2026-01-31 20:53:28.512022+00', '2026-01-31 20:58:28.512022+00', '2026-01-31 20:53:28.565983+00', NULL, 6, '{}', NULL, NULL, NULL, NULL),
	(4, 7, 'orders', 'warehouse', 1, '469a810b-ce29-4bbb-ae7c-a652b7984957', 2402950194539522598, 'succeeded', 'load-be03f7ab24ca', '2026-01-31 20:53:28.603941+00', '2026-01-31 20:53:28.603941+00', '2026-01-31 20:58:28.603941+00', '2026-01-31 20:53:28.665778+00', NULL, 3, '{}', NULL, NULL, NULL, NULL),
	(5, 11, 'orders', 'warehouse', 1, '7e42c1d5-5022-421d-bc82-cfcc44a17368', 2402950194539522598, 'succeeded', 'load-be03f7ab24ca', '2026-01-31 20:53:28.749627+00', '2026-01-31 20:53:28.749627+00', '2026-01-31 20:58:28.749627+00', '2026-01-31 20:53:28.853939+00', NULL, 3, '{}', NULL, NULL, NULL, NULL),
	(6, 12, 'orders', 'warehouse', 1, '531d3eec-46d7-43b9-ab75-95e522231811', 2402950194539522598, 'succeeded', 'load-be03f7ab24ca', '2026-01-31 20:53:28.876055+00', '2026-01-31 20:53:28.876055+00', '2026-01-31 20:58:28.876055+00', '2026-01-31 20:53:28.898716+00', NULL, 3, '{}', NULL, NULL, NULL, NULL);
INSERT INTO batch_pipeline.part_file VALUES
	(1, false, 0, 'file:///srv/release-0.1.0/batches/invoices/invoices-000000000001-000000000002-a1-a1f2be74-00000000-96a98124.parquet', 4, 1574, '2c1acb493b93fedcefbe803c4273455dff38e2780f51d2023e095b4aeb2f88a4'),
	(2, false, 0, 'file:///srv/release-0.1.0/batches/invoices/invoices-000000000003-000000000005-a1-fefea742-00000000-99ac4261.parquet', 4, 1574, 'b873ae35cab578f7064ffdffd1ffba3ca2215a592ce6c2705ffe7f88c5a8bfc5'),
	(3, false, 0, 'file:///srv/release-0.1.0/batches/orders/orders-000000000001-000000000002-a1-5617f084-00000000-4b4728fe.jsonl.gz', 6, 105, '5aef6024c41fbd48e148f423ed5cc7fac3911a397c2e307dcb650679f6eea1e3'),
	(4, false, 0, 'file:///srv/release-0.1.0/batches/orders/orders-000000000003-000000000004-a1-3887db59-00000000-3f1f6511.jsonl.gz', 6, 105, '3496059d94c630ccb5c63c689fa5d7484bd88a78bf0b0aa62b81f456c2450687'),
	(4, true, 0, 'file:///srv/release-0.1.0/batches/orders/quarantine/orders-000000000003-000000000004-a1-3887db59-00000000-3f1f6511.jsonl.gz', 1, 138, 'cc5ebca072caabe9306e2d4752bf8dff285c45a02b4edc4c49265d2d7d01512b'),
	(5, false, 0, 'file:///srv/release-0.1.0/batches/orders/orders-000000000001-000000000002-a2-e59fbe85-00000000-ee125dd0.jsonl.gz', 6, 105, '5aef6024c41fbd48e148f423ed5cc7fac3911a397c2e307dcb650679f6eea1e3'),
	(6, false, 0, 'file:///srv/release-0.1.0/batches/orders/orders.2023-000000000001-000000000002-a1-332a0af8-00000000-a4417651.jsonl.gz', 6, 105, '5aef6024c41fbd48e148f423ed5cc7fac3911a397c2e307dcb650679f6eea1e3'),
	(7, false, 0, 'file:///srv/release-0.1.0/batches/orders/orders.2023-000000000003-000000000003-a1-a969a120-00000000-75584e30.jsonl.gz', 3, 140, '462785fca50e76aff5ddf4322a1dc39916e43585323b5017c5f36b2e4b55be13'),
	(7, true, 0, 'file:///srv/release-0.1.0/batches/orders/quarantine/orders.2023-000000000003-000000000003-a1-a969a120-00000000-75584e30.jsonl.gz', 1, 138, 'cc5ebca072caabe9306e2d4752bf8dff285c45a02b4edc4c49265d2d7d01512b'),
	(8, false, 0, 'file:///srv/release-0.1.0/batches/invoices/invoices.late-000000000004-000000000004-a1-f7d48fbb-00000000-122d2ecc.parquet', 2, 1489, '0b933342c5fbf9949cb8aa23fb3f7300578a9997f3ebad352ce68e48f1fad95d'),
	(11, false, 0, 'file:///srv/release-0.1.0/batches/orders/orders-000000000006-000000000006-a1-fe317ea6-00000000-8e9475b7.jsonl.gz', 3, 141, '870a027496e7e387803f99eee3d5afd9cec31a8cac087c037b6c3303dfabc039'),
	(12, false, 0, 'file:///srv/release-0.1.0/batches/orders/orders-000000000005-000000000005-a2-91264582-00000000-ea7c4c74.jsonl.gz', 3, 140, 'c8f3021583cf9b60f198f92a0ce4a2bf9f48764715cd305e3e298d139290f49f');
INSERT INTO batch_pipeline.schema_version VALUES
	(1, 1, '[["id", "integer"], ["total", "number"], ["to", "object"], ["lines", "array"]]', '2026-01-31 20:51:44.268836+00', 1, 'file:///srv/release-0.1.0/landing/invoices/invoice-1.jsonl', 1, '[{"line": 1, "after": "integer", "before": null, "column": "id", "item_id": 1, "location": "file:///srv/release-0.1.0/landing/invoices/invoice-1.jsonl"}, {"line": 1, "after": "number", "before": null, "column": "total", "item_id": 1, "location": "file:///srv/release-0.1.0/landing/invoices/invoice-1.jsonl"}, {"line": 1, "after": "object", "before": null, "column": "to", "item_id": 1, "location": "file:///srv/release-0.1.0/landing/invoices/invoice-1.jsonl"}, {"line": 1, "after": "array", "before": null, "column": "lines", "item_id": 1, "location": "file:///srv/release-0.1.0/landing/invoices/invoice-1.jsonl"}]', NULL),
	(2, 1, '[["_item_id", "integer"]]', '2026-01-31 20:51:46.675469+00', NULL, NULL, NULL, '[{"line": null, "after": "integer", "before": null, "column": "_item_id", "item_id": null, "location": null}]', NULL),
	(2, 2, '[["_item_id", "integer"], ["order_id", "integer"], ["city", "string"], ["price", "number"]]', '2026-01-31 20:51:46.945093+00', 1, 'file:///srv/release-0.1.0/landing/orders/orders-1.csv', NULL, '[{"line": null, "after": "integer", "before": null, "column": "order_id", "item_id": 1, "location": "file:///srv/release-0.1.0/landing/orders/orders-1.csv"}, {"line": null, "after": "string", "before": null, "column": "city", "item_id": 1, "location": "file:///srv/release-0.1.0/landing/orders/orders-1.csv"}, {"line": null, "after": "number", "before": null, "column": "price", "item_id": 1, "location": "file:///srv/release-0.1.0/landing/orders/orders-1.csv"}]', NULL);
INSERT INTO ops.files VALUES
	(1, '/srv/release-0.1.0/landing/invoices/invoice-1.jsonl', 133),
	(2, '/srv/release-0.1.0/landing/invoices/invoice-2.jsonl', 133),
	(3, '/srv/release-0.1.0/landing/invoices/invoice-3.jsonl', 133),
	(5, '/srv/release-0.1.0/landing/invoices/invoice-5.jsonl', 133),
	(4, '/srv/release-0.1.0/landing/invoices/invoice-4.jsonl', 133);
INSERT INTO public.alembic_version VALUES
	('29b539ebc72a');
INSERT INTO public.asset_event_tags VALUES
	(2, 23, '["invoices", "batches"]', 'dagster/data_version', '1', '2026-01-31 20:51:44.724821'),
	(3, 24, '["invoices", "batches"]', 'dagster/data_version', '1', '2026-01-31 20:51:44.963732'),
	(6, 66, '["orders", "batches"]', 'dagster/data_version', '1', '2026-01-31 20:51:47.60599'),
	(7, 67, '["orders", "batches"]', 'dagster/data_version', '1', '2026-01-31 20:51:47.843534'),
	(9, 95, '["orders", "batches"]', 'dagster/data_version', '2', '2026-01-31 20:51:55.904549'),
	(12, 137, '["orders", "backfill"]', 'dagster/data_version', '1', '2026-01-31 20:52:06.27685'),
	(13, 138, '["orders", "backfill"]', 'dagster/data_version', '1', '2026-01-31 20:52:06.522448'),
	(19, 246, '["orders", "batches"]', 'dagster/data_version', '1', '2026-01-31 20:52:53.988817'),
	(22, 286, '["orders", "batches"]', 'dagster/data_version', '1', '2026-01-31 20:53:17.333133');
INSERT INTO public.asset_keys VALUES
	(4, '["invoices", "batches"]', '{"__class__": "EventLogRecord", "event_log_entry": {"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["invoices", "batches"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "invoices"}, "label": "job"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 266}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 4}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 4}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 0}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1574}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 0.212}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 19}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/invoices/manifests/invoices-000000000003-000000000005.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 1574, "part_file": "invoices-000000000003-000000000005-a1-fefea742-00000000-99ac4261.parquet", "records": 4, "sha256": "b873ae35cab578f7064ffdffd1ffba3ca2215a592ce6c2705ffe7f88c5a8bfc5"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "total", "type": "number"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "to", "type": "object"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "lines", "type": "array"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 4}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"invoices\",\n  \"encoding\": {\n    \"format\": \"parquet\",\n    \"compression\": \"snappy\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/invoices/invoices-000000000003-000000000005-a1-fefea742-00000000-99ac4261.parquet\"\n  ],\n  \"job\": \"invoices\",\n  \"batch_id\": \"000000000003-000000000005\",\n  \"generation\": 1,\n  \"schema_version\": 1,\n  \"record_count\": 4,\n  \"bytes\": 1574,\n  \"sha256\": [\n    \"b873ae35cab578f7064ffdffd1ffba3ca2215a592ce6c2705ffe7f88c5a8bfc5\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": "000000000003-000000000005", "tags": {"dagster/code_version": "1", "dagster/data_version": "1", "dagster/data_version_is_user_provided": "true", "dagster/input_data_version/invoices/meta_table": "append-only", "dagster/input_event_pointer/invoices/meta_table": "NULL"}}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "invoices_encode", "op_name": "invoices__batches", "resource_fn_name": "None", "resource_name": "None", "run_id": "490ecf1f-268f-4de3-96a4-dc630a5ea3dd", "step_key": "invoices__batches"}, "message": "Materialized value invoices batches.", "pid": 29189, "pipeline_name": "invoices_encode", "solid_handle": {"__class__": "SolidHandle", "name": "invoices__batches", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "invoices__batches", "solid_handle": {"__class__": "SolidHandle", "name": "invoices__batches", "parent": null}}, "step_key": "invoices__batches", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "invoices_encode", "run_id": "490ecf1f-268f-4de3-96a4-dc630a5ea3dd", "step_key": "invoices__batches", "timestamp": 1795380704.9637325, "user_message": "Materialized value invoices batches."}, "storage_id": 24}', '490ecf1f-268f-4de3-96a4-dc630a5ea3dd', NULL, NULL, '2026-01-31 20:51:44.963732', NULL, '2026-01-31 20:51:33.783112', NULL),
	(29, '["orders", "backfill"]', '{"__class__": "EventLogRecord", "event_log_entry": {"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["orders", "backfill"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "orders.2023"}, "label": "job"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 66}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 4}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 140}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 0.181}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 17}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/orders/manifests/orders.2023-000000000003-000000000003.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 140, "part_file": "orders.2023-000000000003-000000000003-a1-a969a120-00000000-75584e30.jsonl.gz", "records": 3, "sha256": "462785fca50e76aff5ddf4322a1dc39916e43585323b5017c5f36b2e4b55be13"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "_item_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "order_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "city", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "price", "type": "number"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"orders.2023\",\n  \"encoding\": {\n    \"format\": \"jsonl\",\n    \"compression\": \"gzip\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/orders/orders.2023-000000000003-000000000003-a1-a969a120-00000000-75584e30.jsonl.gz\"\n  ],\n  \"job\": \"orders.2023\",\n  \"batch_id\": \"000000000003-000000000003\",\n  \"generation\": 1,\n  \"schema_version\": 2,\n  \"record_count\": 3,\n  \"bytes\": 140,\n  \"sha256\": [\n    \"462785fca50e76aff5ddf4322a1dc39916e43585323b5017c5f36b2e4b55be13\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": "2023:000000000003-000000000003", "tags": {"dagster/code_version": "1", "dagster/data_version": "1", "dagster/data_version_is_user_provided": "true", "dagster/input_data_version/orders/meta_table": "append-only", "dagster/input_event_pointer/orders/meta_table": "NULL"}}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "orders_encode_backfill", "op_name": "orders__backfill", "resource_fn_name": "None", "resource_name": "None", "run_id": "2dda0ea4-e18e-4f78-aa09-1fd04a7b6db6", "step_key": "orders__backfill"}, "message": "Materialized value orders backfill.", "pid": 31675, "pipeline_name": "orders_encode_backfill", "solid_handle": {"__class__": "SolidHandle", "name": "orders__backfill", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "orders__backfill", "solid_handle": {"__class__": "SolidHandle", "name": "orders__backfill", "parent": null}}, "step_key": "orders__backfill", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "orders_encode_backfill", "run_id": "2dda0ea4-e18e-4f78-aa09-1fd04a7b6db6", "step_key": "orders__backfill", "timestamp": 1795380726.5224476, "user_message": "Materialized value orders backfill."}, "storage_id": 138}', '2dda0ea4-e18e-4f78-aa09-1fd04a7b6db6', NULL, NULL, '2026-01-31 20:52:06.522448', NULL, '2026-01-31 20:52:04.37008', NULL),
	(36, '["invoices", "late"]', '{"__class__": "EventLogRecord", "event_log_entry": {"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["invoices", "late"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 133}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 0}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1489}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 1.875}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/invoices/manifests/invoices.late-000000000004-000000000004.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 1489, "part_file": "invoices.late-000000000004-000000000004-a1-f7d48fbb-00000000-122d2ecc.parquet", "records": 2, "sha256": "0b933342c5fbf9949cb8aa23fb3f7300578a9997f3ebad352ce68e48f1fad95d"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "total", "type": "number"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "to", "type": "object"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "lines", "type": "array"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"invoices.late\",\n  \"encoding\": {\n    \"format\": \"parquet\",\n    \"compression\": \"snappy\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/invoices/invoices.late-000000000004-000000000004-a1-f7d48fbb-00000000-122d2ecc.parquet\"\n  ],\n  \"job\": \"invoices.late\",\n  \"batch_id\": \"000000000004-000000000004\",\n  \"generation\": 1,\n  \"schema_version\": 1,\n  \"record_count\": 2,\n  \"bytes\": 1489,\n  \"sha256\": [\n    \"0b933342c5fbf9949cb8aa23fb3f7300578a9997f3ebad352ce68e48f1fad95d\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": null, "tags": null}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "invoices_late", "op_name": "invoices__late", "resource_fn_name": "None", "resource_name": "None", "run_id": "79af9e75-ba1b-407a-8793-f06c5be35dd4", "step_key": "invoices__late"}, "message": "Materialized value invoices late.", "pid": 32447, "pipeline_name": "invoices_late", "solid_handle": {"__class__": "SolidHandle", "name": "invoices__late", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "invoices__late", "solid_handle": {"__class__": "SolidHandle", "name": "invoices__late", "parent": null}}, "step_key": "invoices__late", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "invoices_late", "run_id": "79af9e75-ba1b-407a-8793-f06c5be35dd4", "step_key": "invoices__late", "timestamp": 1795380741.3804202, "user_message": "Materialized value invoices late."}, "storage_id": 165}', '79af9e75-ba1b-407a-8793-f06c5be35dd4', NULL, NULL, '2026-01-31 20:52:21.38042', NULL, '2026-01-31 20:52:18.390561', NULL),
	(14, '["orders", "batches"]', '{"__class__": "EventLogRecord", "event_log_entry": {"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["orders", "batches"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "orders"}, "label": "job"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 24}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 0}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 140}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 1.643}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/orders/manifests/orders-000000000005-000000000005.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 140, "part_file": "orders-000000000005-000000000005-a2-91264582-00000000-ea7c4c74.jsonl.gz", "records": 3, "sha256": "c8f3021583cf9b60f198f92a0ce4a2bf9f48764715cd305e3e298d139290f49f"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "_item_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "order_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "city", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "price", "type": "number"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"orders\",\n  \"encoding\": {\n    \"format\": \"jsonl\",\n    \"compression\": \"gzip\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/orders/orders-000000000005-000000000005-a2-91264582-00000000-ea7c4c74.jsonl.gz\"\n  ],\n  \"job\": \"orders\",\n  \"batch_id\": \"000000000005-000000000005\",\n  \"generation\": 1,\n  \"schema_version\": 2,\n  \"record_count\": 3,\n  \"bytes\": 140,\n  \"sha256\": [\n    \"c8f3021583cf9b60f198f92a0ce4a2bf9f48764715cd305e3e298d139290f49f\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": "000000000005-000000000005", "tags": {"dagster/code_version": "1", "dagster/data_version": "1", "dagster/data_version_is_user_provided": "true", "dagster/input_data_version/orders/meta_table": "append-only", "dagster/input_event_pointer/orders/meta_table": "NULL"}}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "orders_encode", "op_name": "orders__batches", "resource_fn_name": "None", "resource_name": "None", "run_id": "2ab247f4-6a2b-4893-94f9-be50eaa6e24a", "step_key": "orders__batches"}, "message": "Materialized value orders batches.", "pid": 3658, "pipeline_name": "orders_encode", "solid_handle": {"__class__": "SolidHandle", "name": "orders__batches", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "orders__batches", "solid_handle": {"__class__": "SolidHandle", "name": "orders__batches", "parent": null}}, "step_key": "orders__batches", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "orders_encode", "run_id": "2ab247f4-6a2b-4893-94f9-be50eaa6e24a", "step_key": "orders__batches", "timestamp": 1795380797.3331335, "user_message": "Materialized value orders batches."}, "storage_id": 286}', '2ab247f4-6a2b-4893-94f9-be50eaa6e24a', NULL, NULL, '2026-01-31 20:53:17.333133', NULL, '2026-01-31 20:51:46.332563', NULL);
INSERT INTO public.dynamic_partitions VALUES
	(1, 'invoices.batches', '000000000001-000000000002', '2026-01-31 20:51:33.535085'),
	(2, 'invoices.batches', '000000000003-000000000005', '2026-01-31 20:51:33.535085'),
	(3, 'orders.batches', '000000000001-000000000002', '2026-01-31 20:51:45.982846'),
	(4, 'orders.batches', '000000000003-000000000004', '2026-01-31 20:51:45.982846'),
	(6, 'orders.backfill', '2023:000000000001-000000000002', '2026-01-31 20:52:04.301221'),
	(7, 'orders.backfill', '2023:000000000003-000000000003', '2026-01-31 20:52:04.301221'),
	(8, 'orders.batches', '000000000005-000000000006', '2026-01-31 20:52:33.671836'),
	(9, 'orders.batches', '000000000005-000000000005', '2026-01-31 20:52:51.095519'),
	(10, 'orders.batches', '000000000006-000000000006', '2026-01-31 20:52:51.095519'),
	(11, 'orders.batches', '000000000007-000000000007', '2026-01-31 20:53:59.800609');
INSERT INTO public.event_logs VALUES
	(23, '490ecf1f-268f-4de3-96a4-dc630a5ea3dd', '{"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["invoices", "batches"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "invoices"}, "label": "job"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 266}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 4}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 4}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 0}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1574}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 10.062}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 0}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "schema v1: added `id` (integer), first in file:///srv/release-0.1.0/landing/invoices/invoice-1.jsonl, line 1; added `total` (number), first in file:///srv/release-0.1.0/landing/invoices/invoice-1.jsonl, line 1; added `to` (object), first in file:///srv/release-0.1.0/landing/invoices/invoice-1.jsonl, line 1; added `lines` (array), first in file:///srv/release-0.1.0/landing/invoices/invoice-1.jsonl, line 1"}, "label": "schema_changes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/invoices/manifests/invoices-000000000001-000000000002.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 1574, "part_file": "invoices-000000000001-000000000002-a1-a1f2be74-00000000-96a98124.parquet", "records": 4, "sha256": "2c1acb493b93fedcefbe803c4273455dff38e2780f51d2023e095b4aeb2f88a4"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "total", "type": "number"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "to", "type": "object"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "lines", "type": "array"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 4}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"invoices\",\n  \"encoding\": {\n    \"format\": \"parquet\",\n    \"compression\": \"snappy\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/invoices/invoices-000000000001-000000000002-a1-a1f2be74-00000000-96a98124.parquet\"\n  ],\n  \"job\": \"invoices\",\n  \"batch_id\": \"000000000001-000000000002\",\n  \"generation\": 1,\n  \"schema_version\": 1,\n  \"record_count\": 4,\n  \"bytes\": 1574,\n  \"sha256\": [\n    \"2c1acb493b93fedcefbe803c4273455dff38e2780f51d2023e095b4aeb2f88a4\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": "000000000001-000000000002", "tags": {"dagster/code_version": "1", "dagster/data_version": "1", "dagster/data_version_is_user_provided": "true", "dagster/input_data_version/invoices/meta_table": "append-only", "dagster/input_event_pointer/invoices/meta_table": "NULL"}}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "invoices_encode", "op_name": "invoices__batches", "resource_fn_name": "None", "resource_name": "None", "run_id": "490ecf1f-268f-4de3-96a4-dc630a5ea3dd", "step_key": "invoices__batches"}, "message": "Materialized value invoices batches.", "pid": 29189, "pipeline_name": "invoices_encode", "solid_handle": {"__class__": "SolidHandle", "name": "invoices__batches", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "invoices__batches", "solid_handle": {"__class__": "SolidHandle", "name": "invoices__batches", "parent": null}}, "step_key": "invoices__batches", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "invoices_encode", "run_id": "490ecf1f-268f-4de3-96a4-dc630a5ea3dd", "step_key": "invoices__batches", "timestamp": 1795380704.724821, "user_message": "Materialized value invoices batches."}', 'ASSET_MATERIALIZATION', '2026-01-31 20:51:44.724821', 'invoices__batches', '["invoices", "batches"]', '000000000001-000000000002'),
	(24, '490ecf1f-268f-4de3-96a4-dc630a5ea3dd', '{"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["invoices", "batches"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "invoices"}, "label": "job"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 266}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 4}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 4}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 0}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1574}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 0.212}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 19}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/invoices/manifests/invoices-000000000003-000000000005.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 1574, "part_file": "invoices-000000000003-000000000005-a1-fefea742-00000000-99ac4261.parquet", "records": 4, "sha256": "b873ae35cab578f7064ffdffd1ffba3ca2215a592ce6c2705ffe7f88c5a8bfc5"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "total", "type": "number"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "to", "type": "object"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "lines", "type": "array"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 4}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"invoices\",\n  \"encoding\": {\n    \"format\": \"parquet\",\n    \"compression\": \"snappy\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/invoices/invoices-000000000003-000000000005-a1-fefea742-00000000-99ac4261.parquet\"\n  ],\n  \"job\": \"invoices\",\n  \"batch_id\": \"000000000003-000000000005\",\n  \"generation\": 1,\n  \"schema_version\": 1,\n  \"record_count\": 4,\n  \"bytes\": 1574,\n  \"sha256\": [\n    \"b873ae35cab578f7064ffdffd1ffba3ca2215a592ce6c2705ffe7f88c5a8bfc5\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": "000000000003-000000000005", "tags": {"dagster/code_version": "1", "dagster/data_version": "1", "dagster/data_version_is_user_provided": "true", "dagster/input_data_version/invoices/meta_table": "append-only", "dagster/input_event_pointer/invoices/meta_table": "NULL"}}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "invoices_encode", "op_name": "invoices__batches", "resource_fn_name": "None", "resource_name": "None", "run_id": "490ecf1f-268f-4de3-96a4-dc630a5ea3dd", "step_key": "invoices__batches"}, "message": "Materialized value invoices batches.", "pid": 29189, "pipeline_name": "invoices_encode", "solid_handle": {"__class__": "SolidHandle", "name": "invoices__batches", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "invoices__batches", "solid_handle": {"__class__": "SolidHandle", "name": "invoices__batches", "parent": null}}, "step_key": "invoices__batches", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "invoices_encode", "run_id": "490ecf1f-268f-4de3-96a4-dc630a5ea3dd", "step_key": "invoices__batches", "timestamp": 1795380704.9637325, "user_message": "Materialized value invoices batches."}', 'ASSET_MATERIALIZATION', '2026-01-31 20:51:44.963732', 'invoices__batches', '["invoices", "batches"]', '000000000003-000000000005'),
	(66, 'ee28f209-9530-4762-a86d-bdfd6495b127', '{"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["orders", "batches"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "orders"}, "label": "job"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 118}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 0}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 105}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 1.061}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "schema v2: added `order_id` (integer), first in file:///srv/release-0.1.0/landing/orders/orders-1.csv; added `city` (string), first in file:///srv/release-0.1.0/landing/orders/orders-1.csv; added `price` (number), first in file:///srv/release-0.1.0/landing/orders/orders-1.csv"}, "label": "schema_changes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/orders/manifests/orders-000000000001-000000000002.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 105, "part_file": "orders-000000000001-000000000002-a1-5617f084-00000000-4b4728fe.jsonl.gz", "records": 6, "sha256": "5aef6024c41fbd48e148f423ed5cc7fac3911a397c2e307dcb650679f6eea1e3"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "_item_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "order_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "city", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "price", "type": "number"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"orders\",\n  \"encoding\": {\n    \"format\": \"jsonl\",\n    \"compression\": \"gzip\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/orders/orders-000000000001-000000000002-a1-5617f084-00000000-4b4728fe.jsonl.gz\"\n  ],\n  \"job\": \"orders\",\n  \"batch_id\": \"000000000001-000000000002\",\n  \"generation\": 1,\n  \"schema_version\": 2,\n  \"record_count\": 6,\n  \"bytes\": 105,\n  \"sha256\": [\n    \"5aef6024c41fbd48e148f423ed5cc7fac3911a397c2e307dcb650679f6eea1e3\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": "000000000001-000000000002", "tags": {"dagster/code_version": "1", "dagster/data_version": "1", "dagster/data_version_is_user_provided": "true", "dagster/input_data_version/orders/meta_table": "append-only", "dagster/input_event_pointer/orders/meta_table": "NULL"}}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "orders_encode", "op_name": "orders__batches", "resource_fn_name": "None", "resource_name": "None", "run_id": "ee28f209-9530-4762-a86d-bdfd6495b127", "step_key": "orders__batches"}, "message": "Materialized value orders batches.", "pid": 29189, "pipeline_name": "orders_encode", "solid_handle": {"__class__": "SolidHandle", "name": "orders__batches", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "orders__batches", "solid_handle": {"__class__": "SolidHandle", "name": "orders__batches", "parent": null}}, "step_key": "orders__batches", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "orders_encode", "run_id": "ee28f209-9530-4762-a86d-bdfd6495b127", "step_key": "orders__batches", "timestamp": 1795380707.60599, "user_message": "Materialized value orders batches."}', 'ASSET_MATERIALIZATION', '2026-01-31 20:51:47.60599', 'orders__batches', '["orders", "batches"]', '000000000001-000000000002'),
	(67, 'ee28f209-9530-4762-a86d-bdfd6495b127', '{"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["orders", "batches"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "orders"}, "label": "job"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 125}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 7}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 105}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 0.216}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 28}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/orders/manifests/orders-000000000003-000000000004.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 105, "part_file": "orders-000000000003-000000000004-a1-3887db59-00000000-3f1f6511.jsonl.gz", "records": 6, "sha256": "3496059d94c630ccb5c63c689fa5d7484bd88a78bf0b0aa62b81f456c2450687"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "_item_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "order_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "city", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "price", "type": "number"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"orders\",\n  \"encoding\": {\n    \"format\": \"jsonl\",\n    \"compression\": \"gzip\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/orders/orders-000000000003-000000000004-a1-3887db59-00000000-3f1f6511.jsonl.gz\"\n  ],\n  \"job\": \"orders\",\n  \"batch_id\": \"000000000003-000000000004\",\n  \"generation\": 1,\n  \"schema_version\": 2,\n  \"record_count\": 6,\n  \"bytes\": 105,\n  \"sha256\": [\n    \"3496059d94c630ccb5c63c689fa5d7484bd88a78bf0b0aa62b81f456c2450687\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": "000000000003-000000000004", "tags": {"dagster/code_version": "1", "dagster/data_version": "1", "dagster/data_version_is_user_provided": "true", "dagster/input_data_version/orders/meta_table": "append-only", "dagster/input_event_pointer/orders/meta_table": "NULL"}}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "orders_encode", "op_name": "orders__batches", "resource_fn_name": "None", "resource_name": "None", "run_id": "ee28f209-9530-4762-a86d-bdfd6495b127", "step_key": "orders__batches"}, "message": "Materialized value orders batches.", "pid": 29189, "pipeline_name": "orders_encode", "solid_handle": {"__class__": "SolidHandle", "name": "orders__batches", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "orders__batches", "solid_handle": {"__class__": "SolidHandle", "name": "orders__batches", "parent": null}}, "step_key": "orders__batches", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "orders_encode", "run_id": "ee28f209-9530-4762-a86d-bdfd6495b127", "step_key": "orders__batches", "timestamp": 1795380707.8435342, "user_message": "Materialized value orders batches."}', 'ASSET_MATERIALIZATION', '2026-01-31 20:51:47.843534', 'orders__batches', '["orders", "batches"]', '000000000003-000000000004'),
	(95, '64a27a20-2184-49ff-b53a-d96fe6a8dc01', '{"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["orders", "batches"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "orders"}, "label": "job"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 118}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 0}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 105}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 0.973}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/orders/manifests/orders-000000000001-000000000002.g2.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 105, "part_file": "orders-000000000001-000000000002-a2-e59fbe85-00000000-ee125dd0.jsonl.gz", "records": 6, "sha256": "5aef6024c41fbd48e148f423ed5cc7fac3911a397c2e307dcb650679f6eea1e3"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "_item_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "order_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "city", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "price", "type": "number"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"orders\",\n  \"encoding\": {\n    \"format\": \"jsonl\",\n    \"compression\": \"gzip\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/orders/orders-000000000001-000000000002-a2-e59fbe85-00000000-ee125dd0.jsonl.gz\"\n  ],\n  \"job\": \"orders\",\n  \"batch_id\": \"000000000001-000000000002\",\n  \"generation\": 2,\n  \"schema_version\": 2,\n  \"record_count\": 6,\n  \"bytes\": 105,\n  \"sha256\": [\n    \"5aef6024c41fbd48e148f423ed5cc7fac3911a397c2e307dcb650679f6eea1e3\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": "000000000001-000000000002", "tags": {"dagster/code_version": "1", "dagster/data_version": "2", "dagster/data_version_is_user_provided": "true", "dagster/input_data_version/orders/meta_table": "append-only", "dagster/input_event_pointer/orders/meta_table": "NULL"}}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "orders_encode", "op_name": "orders__batches", "resource_fn_name": "None", "resource_name": "None", "run_id": "64a27a20-2184-49ff-b53a-d96fe6a8dc01", "step_key": "orders__batches"}, "message": "Materialized value orders batches.", "pid": 31270, "pipeline_name": "orders_encode", "solid_handle": {"__class__": "SolidHandle", "name": "orders__batches", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "orders__batches", "solid_handle": {"__class__": "SolidHandle", "name": "orders__batches", "parent": null}}, "step_key": "orders__batches", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "orders_encode", "run_id": "64a27a20-2184-49ff-b53a-d96fe6a8dc01", "step_key": "orders__batches", "timestamp": 1795380715.9045494, "user_message": "Materialized value orders batches."}', 'ASSET_MATERIALIZATION', '2026-01-31 20:51:55.904549', 'orders__batches', '["orders", "batches"]', '000000000001-000000000002'),
	(137, '2dda0ea4-e18e-4f78-aa09-1fd04a7b6db6', '{"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["orders", "backfill"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "orders.2023"}, "label": "job"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 118}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 0}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 105}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 0.98}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/orders/manifests/orders.2023-000000000001-000000000002.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 105, "part_file": "orders.2023-000000000001-000000000002-a1-332a0af8-00000000-a4417651.jsonl.gz", "records": 6, "sha256": "5aef6024c41fbd48e148f423ed5cc7fac3911a397c2e307dcb650679f6eea1e3"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "_item_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "order_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "city", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "price", "type": "number"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 6}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"orders.2023\",\n  \"encoding\": {\n    \"format\": \"jsonl\",\n    \"compression\": \"gzip\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/orders/orders.2023-000000000001-000000000002-a1-332a0af8-00000000-a4417651.jsonl.gz\"\n  ],\n  \"job\": \"orders.2023\",\n  \"batch_id\": \"000000000001-000000000002\",\n  \"generation\": 1,\n  \"schema_version\": 2,\n  \"record_count\": 6,\n  \"bytes\": 105,\n  \"sha256\": [\n    \"5aef6024c41fbd48e148f423ed5cc7fac3911a397c2e307dcb650679f6eea1e3\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": "2023:000000000001-000000000002", "tags": {"dagster/code_version": "1", "dagster/data_version": "1", "dagster/data_version_is_user_provided": "true", "dagster/input_data_version/orders/meta_table": "append-only", "dagster/input_event_pointer/orders/meta_table": "NULL"}}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "orders_encode_backfill", "op_name": "orders__backfill", "resource_fn_name": "None", "resource_name": "None", "run_id": "2dda0ea4-e18e-4f78-aa09-1fd04a7b6db6", "step_key": "orders__backfill"}, "message": "Materialized value orders backfill.", "pid": 31675, "pipeline_name": "orders_encode_backfill", "solid_handle": {"__class__": "SolidHandle", "name": "orders__backfill", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "orders__backfill", "solid_handle": {"__class__": "SolidHandle", "name": "orders__backfill", "parent": null}}, "step_key": "orders__backfill", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "orders_encode_backfill", "run_id": "2dda0ea4-e18e-4f78-aa09-1fd04a7b6db6", "step_key": "orders__backfill", "timestamp": 1795380726.2768495, "user_message": "Materialized value orders backfill."}', 'ASSET_MATERIALIZATION', '2026-01-31 20:52:06.27685', 'orders__backfill', '["orders", "backfill"]', '2023:000000000001-000000000002'),
	(138, '2dda0ea4-e18e-4f78-aa09-1fd04a7b6db6', '{"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["orders", "backfill"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "orders.2023"}, "label": "job"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 66}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 4}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 140}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 0.181}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 17}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/orders/manifests/orders.2023-000000000003-000000000003.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 140, "part_file": "orders.2023-000000000003-000000000003-a1-a969a120-00000000-75584e30.jsonl.gz", "records": 3, "sha256": "462785fca50e76aff5ddf4322a1dc39916e43585323b5017c5f36b2e4b55be13"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "_item_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "order_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "city", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "price", "type": "number"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"orders.2023\",\n  \"encoding\": {\n    \"format\": \"jsonl\",\n    \"compression\": \"gzip\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/orders/orders.2023-000000000003-000000000003-a1-a969a120-00000000-75584e30.jsonl.gz\"\n  ],\n  \"job\": \"orders.2023\",\n  \"batch_id\": \"000000000003-000000000003\",\n  \"generation\": 1,\n  \"schema_version\": 2,\n  \"record_count\": 3,\n  \"bytes\": 140,\n  \"sha256\": [\n    \"462785fca50e76aff5ddf4322a1dc39916e43585323b5017c5f36b2e4b55be13\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": "2023:000000000003-000000000003", "tags": {"dagster/code_version": "1", "dagster/data_version": "1", "dagster/data_version_is_user_provided": "true", "dagster/input_data_version/orders/meta_table": "append-only", "dagster/input_event_pointer/orders/meta_table": "NULL"}}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "orders_encode_backfill", "op_name": "orders__backfill", "resource_fn_name": "None", "resource_name": "None", "run_id": "2dda0ea4-e18e-4f78-aa09-1fd04a7b6db6", "step_key": "orders__backfill"}, "message": "Materialized value orders backfill.", "pid": 31675, "pipeline_name": "orders_encode_backfill", "solid_handle": {"__class__": "SolidHandle", "name": "orders__backfill", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "orders__backfill", "solid_handle": {"__class__": "SolidHandle", "name": "orders__backfill", "parent": null}}, "step_key": "orders__backfill", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "orders_encode_backfill", "run_id": "2dda0ea4-e18e-4f78-aa09-1fd04a7b6db6", "step_key": "orders__backfill", "timestamp": 1795380726.5224476, "user_message": "Materialized value orders backfill."}', 'ASSET_MATERIALIZATION', '2026-01-31 20:52:06.522448', 'orders__backfill', '["orders", "backfill"]', '2023:000000000003-000000000003'),
	(165, '79af9e75-ba1b-407a-8793-f06c5be35dd4', '{"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["invoices", "late"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 133}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 0}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1489}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 1.875}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/invoices/manifests/invoices.late-000000000004-000000000004.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 1489, "part_file": "invoices.late-000000000004-000000000004-a1-f7d48fbb-00000000-122d2ecc.parquet", "records": 2, "sha256": "0b933342c5fbf9949cb8aa23fb3f7300578a9997f3ebad352ce68e48f1fad95d"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "total", "type": "number"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "to", "type": "object"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "lines", "type": "array"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"invoices.late\",\n  \"encoding\": {\n    \"format\": \"parquet\",\n    \"compression\": \"snappy\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/invoices/invoices.late-000000000004-000000000004-a1-f7d48fbb-00000000-122d2ecc.parquet\"\n  ],\n  \"job\": \"invoices.late\",\n  \"batch_id\": \"000000000004-000000000004\",\n  \"generation\": 1,\n  \"schema_version\": 1,\n  \"record_count\": 2,\n  \"bytes\": 1489,\n  \"sha256\": [\n    \"0b933342c5fbf9949cb8aa23fb3f7300578a9997f3ebad352ce68e48f1fad95d\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": null, "tags": null}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "invoices_late", "op_name": "invoices__late", "resource_fn_name": "None", "resource_name": "None", "run_id": "79af9e75-ba1b-407a-8793-f06c5be35dd4", "step_key": "invoices__late"}, "message": "Materialized value invoices late.", "pid": 32447, "pipeline_name": "invoices_late", "solid_handle": {"__class__": "SolidHandle", "name": "invoices__late", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "invoices__late", "solid_handle": {"__class__": "SolidHandle", "name": "invoices__late", "parent": null}}, "step_key": "invoices__late", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "invoices_late", "run_id": "79af9e75-ba1b-407a-8793-f06c5be35dd4", "step_key": "invoices__late", "timestamp": 1795380741.3804202, "user_message": "Materialized value invoices late."}', 'ASSET_MATERIALIZATION', '2026-01-31 20:52:21.38042', 'invoices__late', '["invoices", "late"]', NULL),
	(246, 'da5e194f-7201-4b7d-aa53-9de4eb2b21f5', '{"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["orders", "batches"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "orders"}, "label": "job"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 59}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 0}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 141}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 0.182}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 17}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/orders/manifests/orders-000000000006-000000000006.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 141, "part_file": "orders-000000000006-000000000006-a1-fe317ea6-00000000-8e9475b7.jsonl.gz", "records": 3, "sha256": "870a027496e7e387803f99eee3d5afd9cec31a8cac087c037b6c3303dfabc039"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "_item_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "order_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "city", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "price", "type": "number"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"orders\",\n  \"encoding\": {\n    \"format\": \"jsonl\",\n    \"compression\": \"gzip\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/orders/orders-000000000006-000000000006-a1-fe317ea6-00000000-8e9475b7.jsonl.gz\"\n  ],\n  \"job\": \"orders\",\n  \"batch_id\": \"000000000006-000000000006\",\n  \"generation\": 1,\n  \"schema_version\": 2,\n  \"record_count\": 3,\n  \"bytes\": 141,\n  \"sha256\": [\n    \"870a027496e7e387803f99eee3d5afd9cec31a8cac087c037b6c3303dfabc039\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": "000000000006-000000000006", "tags": {"dagster/code_version": "1", "dagster/data_version": "1", "dagster/data_version_is_user_provided": "true", "dagster/input_data_version/orders/meta_table": "append-only", "dagster/input_event_pointer/orders/meta_table": "NULL"}}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "orders_encode", "op_name": "orders__batches", "resource_fn_name": "None", "resource_name": "None", "run_id": "da5e194f-7201-4b7d-aa53-9de4eb2b21f5", "step_key": "orders__batches"}, "message": "Materialized value orders batches.", "pid": 1546, "pipeline_name": "orders_encode", "solid_handle": {"__class__": "SolidHandle", "name": "orders__batches", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "orders__batches", "solid_handle": {"__class__": "SolidHandle", "name": "orders__batches", "parent": null}}, "step_key": "orders__batches", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "orders_encode", "run_id": "da5e194f-7201-4b7d-aa53-9de4eb2b21f5", "step_key": "orders__batches", "timestamp": 1795380773.9888167, "user_message": "Materialized value orders batches."}', 'ASSET_MATERIALIZATION', '2026-01-31 20:52:53.988817', 'orders__batches', '["orders", "batches"]', '000000000006-000000000006'),
	(286, '2ab247f4-6a2b-4893-94f9-be50eaa6e24a', '{"__class__": "EventLogEntry", "dagster_event": {"__class__": "DagsterEvent", "event_specific_data": {"__class__": "StepMaterializationData", "asset_lineage": [], "materialization": {"__class__": "AssetMaterialization", "asset_key": {"__class__": "AssetKey", "path": ["orders", "batches"]}, "description": null, "metadata_entries": [{"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TextMetadataEntryData", "text": "orders"}, "label": "job"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "items"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 24}, "label": "weight_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "records"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "records_read"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 0}, "label": "records_quarantined"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "part_files"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 140}, "label": "size_bytes"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "attempt"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 1}, "label": "generation"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "schema_version"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "FloatMetadataEntryData", "value": 1.643}, "label": "seconds"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 2}, "label": "records_per_second"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "PathMetadataEntryData", "path": "/srv/release-0.1.0/batches/orders/manifests/orders-000000000005-000000000005.g1.json"}, "label": "manifest"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableMetadataEntryData", "records": [{"__class__": "TableRecord", "data": {"bytes": 140, "part_file": "orders-000000000005-000000000005-a2-91264582-00000000-ea7c4c74.jsonl.gz", "records": 3, "sha256": "c8f3021583cf9b60f198f92a0ce4a2bf9f48764715cd305e3e298d139290f49f"}}], "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "part_file", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "records", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "bytes", "type": "int"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "sha256", "type": "string"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "part_file_list"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "TableSchemaMetadataEntryData", "schema": {"__class__": "TableSchema", "columns": [{"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "_item_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "order_id", "type": "integer"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "city", "type": "string"}, {"__class__": "TableColumn", "constraints": {"__class__": "TableColumnConstraints", "nullable": true, "other": [], "unique": false}, "description": null, "name": "price", "type": "number"}], "constraints": {"__class__": "TableConstraints", "other": []}}}, "label": "dagster/column_schema"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "IntMetadataEntryData", "value": 3}, "label": "dagster/row_count"}, {"__class__": "EventMetadataEntry", "description": null, "entry_data": {"__class__": "MarkdownMetadataEntryData", "md_str": "```json\n{\n  \"type\": \"BATCH\",\n  \"stream\": \"orders\",\n  \"encoding\": {\n    \"format\": \"jsonl\",\n    \"compression\": \"gzip\"\n  },\n  \"manifest\": [\n    \"file:///srv/release-0.1.0/batches/orders/orders-000000000005-000000000005-a2-91264582-00000000-ea7c4c74.jsonl.gz\"\n  ],\n  \"job\": \"orders\",\n  \"batch_id\": \"000000000005-000000000005\",\n  \"generation\": 1,\n  \"schema_version\": 2,\n  \"record_count\": 3,\n  \"bytes\": 140,\n  \"sha256\": [\n    \"c8f3021583cf9b60f198f92a0ce4a2bf9f48764715cd305e3e298d139290f49f\"\n  ]\n}\n```"}, "label": "batch_message"}], "partition": "000000000005-000000000005", "tags": {"dagster/code_version": "1", "dagster/data_version": "1", "dagster/data_version_is_user_provided": "true", "dagster/input_data_version/orders/meta_table": "append-only", "dagster/input_event_pointer/orders/meta_table": "NULL"}}}, "event_type_value": "ASSET_MATERIALIZATION", "logging_tags": {"job_name": "orders_encode", "op_name": "orders__batches", "resource_fn_name": "None", "resource_name": "None", "run_id": "2ab247f4-6a2b-4893-94f9-be50eaa6e24a", "step_key": "orders__batches"}, "message": "Materialized value orders batches.", "pid": 3658, "pipeline_name": "orders_encode", "solid_handle": {"__class__": "SolidHandle", "name": "orders__batches", "parent": null}, "step_handle": {"__class__": "StepHandle", "key": "orders__batches", "solid_handle": {"__class__": "SolidHandle", "name": "orders__batches", "parent": null}}, "step_key": "orders__batches", "step_kind_value": "COMPUTE"}, "error_info": null, "level": 10, "message": "", "pipeline_name": "orders_encode", "run_id": "2ab247f4-6a2b-4893-94f9-be50eaa6e24a", "step_key": "orders__batches", "timestamp": 1795380797.3331335, "user_message": "Materialized value orders batches."}', 'ASSET_MATERIALIZATION', '2026-01-31 20:53:17.333133', 'orders__batches', '["orders", "batches"]', '000000000005-000000000005');
INSERT INTO public.secondary_indexes VALUES
	(1, 'run_partitions', '2026-01-31 20:51:31.818521', '2026-01-31 20:51:31.804226'),
	(2, 'run_repo_label_tags', '2026-01-31 20:51:31.849365', '2026-01-31 20:51:31.843986'),
	(3, 'bulk_action_types', '2026-01-31 20:51:31.883062', '2026-01-31 20:51:31.875906'),
	(4, 'run_backfill_id', '2026-01-31 20:51:31.931964', '2026-01-31 20:51:31.926352'),
	(5, 'backfill_job_name_and_tags', '2026-01-31 20:51:31.962539', '2026-01-31 20:51:31.95636'),
	(6, 'backfill_end_timestamp', '2026-01-31 20:51:31.984975', '2026-01-31 20:51:31.982773'),
	(7, 'run_start_end_overwritten', '2026-01-31 20:51:32.034549', '2026-01-31 20:51:32.027604'),
	(8, 'asset_key_table', '2026-01-31 20:51:32.214525', '2026-01-31 20:51:32.209185'),
	(9, 'asset_key_index_columns', '2026-01-31 20:51:32.229715', '2026-01-31 20:51:32.227967'),
	(10, 'schedule_jobs_selector_id', '2026-01-31 20:51:32.442505', '2026-01-31 20:51:32.436388'),
	(11, 'schedule_ticks_selector_id', '2026-01-31 20:51:32.494519', '2026-01-31 20:51:32.488916');
INSERT INTO sales.batch_pipeline_column VALUES
	('orders', '_item_id'),
	('orders', 'order_id'),
	('orders', 'city'),
	('orders', 'price'),
	('orders', '_batch_id'),
	('orders', '_batch_order'),
	('orders', '_sdc_extracted_at'),
	('orders', '_sdc_received_at'),
	('orders', '_sdc_batched_at'),
	('orders', '_sdc_deleted_at'),
	('orders', '_sdc_sequence'),
	('orders', '_sdc_table_version');
INSERT INTO sales.batch_pipeline_load VALUES
	('orders', 'orders', '000000000003-000000000004', 1, '3887db59-e26a-4b96-bd34-4e94bfaa450c', 2, 6, '2026-01-31 20:53:28.263041+00'),
	('orders', 'orders', '000000000001-000000000002', 2, 'e59fbe85-49e3-41b2-8a40-e2b13aa3b33b', 3, 6, '2026-01-31 20:53:28.428789+00'),
	('orders', 'orders', '2023:000000000001-000000000002', 1, '332a0af8-6c24-4642-88fe-34b5d900344b', 1, 6, '2026-01-31 20:53:28.546676+00'),
	('orders', 'orders', '2023:000000000003-000000000003', 1, 'a969a120-0281-4d05-ac93-8f6bda4ca4c6', 2, 3, '2026-01-31 20:53:28.634092+00'),
	('orders', 'orders', '000000000006-000000000006', 1, 'fe317ea6-c372-4578-a8f4-a0d4abb46bba', 4, 3, '2026-01-31 20:53:28.803869+00'),
	('orders', 'orders', '000000000005-000000000005', 1, '91264582-4838-405f-8b08-545dd2e0caac', 5, 3, '2026-01-31 20:53:28.881643+00');
INSERT INTO sales.orders VALUES
	(4, 41, 'Bern', 1.5, '000000000003-000000000004', 4, '2026-01-31 20:53:28.264776+00', '2026-01-31 20:53:28.264776+00', '2026-01-31 20:53:28.264776+00', NULL, 1795380808264, NULL),
	(4, 42, 'Bern', 2.5, '000000000003-000000000004', 4, '2026-01-31 20:53:28.264776+00', '2026-01-31 20:53:28.264776+00', '2026-01-31 20:53:28.264776+00', NULL, 1795380808264, NULL),
	(4, 43, 'Bern', 3.5, '000000000003-000000000004', 4, '2026-01-31 20:53:28.264776+00', '2026-01-31 20:53:28.264776+00', '2026-01-31 20:53:28.264776+00', NULL, 1795380808264, NULL),
	(1, 11, 'Bern', 1.5, '2023:000000000001-000000000002', 1, '2026-01-31 20:53:28.549937+00', '2026-01-31 20:53:28.549937+00', '2026-01-31 20:53:28.549937+00', NULL, 1795380808549, NULL),
	(1, 12, 'Bern', 2.5, '2023:000000000001-000000000002', 1, '2026-01-31 20:53:28.549937+00', '2026-01-31 20:53:28.549937+00', '2026-01-31 20:53:28.549937+00', NULL, 1795380808549, NULL),
	(1, 13, 'Bern', 3.5, '2023:000000000001-000000000002', 1, '2026-01-31 20:53:28.549937+00', '2026-01-31 20:53:28.549937+00', '2026-01-31 20:53:28.549937+00', NULL, 1795380808549, NULL),
	(2, 21, 'Bern', 1.5, '2023:000000000001-000000000002', 2, '2026-01-31 20:53:28.549937+00', '2026-01-31 20:53:28.549937+00', '2026-01-31 20:53:28.549937+00', NULL, 1795380808549, NULL),
	(2, 22, 'Bern', 2.5, '2023:000000000001-000000000002', 2, '2026-01-31 20:53:28.549937+00', '2026-01-31 20:53:28.549937+00', '2026-01-31 20:53:28.549937+00', NULL, 1795380808549, NULL),
	(2, 23, 'Bern', 3.5, '2023:000000000001-000000000002', 2, '2026-01-31 20:53:28.549937+00', '2026-01-31 20:53:28.549937+00', '2026-01-31 20:53:28.549937+00', NULL, 1795380808549, NULL),
	(3, 31, 'Bern', 1.5, '2023:000000000003-000000000003', 3, '2026-01-31 20:53:28.635802+00', '2026-01-31 20:53:28.635802+00', '2026-01-31 20:53:28.635802+00', NULL, 1795380808635, NULL),
	(3, 32, 'Bern', 2.5, '2023:000000000003-000000000003', 3, '2026-01-31 20:53:28.635802+00', '2026-01-31 20:53:28.635802+00', '2026-01-31 20:53:28.635802+00', NULL, 1795380808635, NULL),
	(3, 33, 'Bern', 3.5, '2023:000000000003-000000000003', 3, '2026-01-31 20:53:28.635802+00', '2026-01-31 20:53:28.635802+00', '2026-01-31 20:53:28.635802+00', NULL, 1795380808635, NULL),
	(6, 61, 'Bern', 1.5, '000000000006-000000000006', 6, '2026-01-31 20:53:28.830238+00', '2026-01-31 20:53:28.830238+00', '2026-01-31 20:53:28.830238+00', NULL, 1795380808830, NULL),
	(6, 62, 'Bern', 2.5, '000000000006-000000000006', 6, '2026-01-31 20:53:28.830238+00', '2026-01-31 20:53:28.830238+00', '2026-01-31 20:53:28.830238+00', NULL, 1795380808830, NULL),
	(6, 63, 'Bern', 3.5, '000000000006-000000000006', 6, '2026-01-31 20:53:28.830238+00', '2026-01-31 20:53:28.830238+00', '2026-01-31 20:53:28.830238+00', NULL, 1795380808830, NULL),
	(5, 51, 'Bern', 1.5, '000000000005-000000000005', 5, '2026-01-31 20:53:28.882406+00', '2026-01-31 20:53:28.882406+00', '2026-01-31 20:53:28.882406+00', NULL, 1795380808882, NULL),
	(5, 52, 'Bern', 2.5, '000000000005-000000000005', 5, '2026-01-31 20:53:28.882406+00', '2026-01-31 20:53:28.882406+00', '2026-01-31 20:53:28.882406+00', NULL, 1795380808882, NULL),
	(5, 53, 'Bern', 3.5, '000000000005-000000000005', 5, '2026-01-31 20:53:28.882406+00', '2026-01-31 20:53:28.882406+00', '2026-01-31 20:53:28.882406+00', NULL, 1795380808882, NULL);
SELECT pg_catalog.setval('batch_pipeline.attempt_id_seq', 12, true);
SELECT pg_catalog.setval('batch_pipeline.batch_id_seq', 11, true);
SELECT pg_catalog.setval('batch_pipeline.job_id_seq', 4, true);
SELECT pg_catalog.setval('batch_pipeline.load_id_seq', 6, true);
SELECT pg_catalog.setval('ops.files_id_seq', 5, true);
SELECT pg_catalog.setval('public.asset_check_executions_id_seq', 29, true);
SELECT pg_catalog.setval('public.asset_daemon_asset_evaluations_id_seq', 1, false);
SELECT pg_catalog.setval('public.asset_event_tags_id_seq', 23, true);
SELECT pg_catalog.setval('public.asset_keys_id_seq', 66, true);
SELECT pg_catalog.setval('public.backfill_tags_id_seq', 1, false);
SELECT pg_catalog.setval('public.bulk_actions_id_seq', 1, false);
SELECT pg_catalog.setval('public.concurrency_limits_id_seq', 1, false);
SELECT pg_catalog.setval('public.concurrency_slots_id_seq', 1, false);
SELECT pg_catalog.setval('public.daemon_heartbeats_id_seq', 1, false);
SELECT pg_catalog.setval('public.dynamic_partitions_id_seq', 11, true);
SELECT pg_catalog.setval('public.event_logs_id_seq', 308, true);
SELECT pg_catalog.setval('public.instance_info_id_seq', 1, false);
SELECT pg_catalog.setval('public.instigators_id_seq', 1, false);
SELECT pg_catalog.setval('public.job_ticks_id_seq', 1, false);
SELECT pg_catalog.setval('public.jobs_id_seq', 1, false);
SELECT pg_catalog.setval('public.kvs_id_seq', 1, false);
SELECT pg_catalog.setval('public.pending_steps_id_seq', 1, false);
SELECT pg_catalog.setval('public.run_tags_id_seq', 71, true);
SELECT pg_catalog.setval('public.runs_id_seq', 22, true);
SELECT pg_catalog.setval('public.secondary_indexes_id_seq', 11, true);
SELECT pg_catalog.setval('public.snapshots_id_seq', 12, true);
ALTER TABLE ONLY batch_pipeline.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY batch_pipeline.attempt
    ADD CONSTRAINT attempt_batch_id_generation_key UNIQUE (batch_id, generation);
ALTER TABLE ONLY batch_pipeline.attempt
    ADD CONSTRAINT attempt_batch_id_number_key UNIQUE (batch_id, number);
ALTER TABLE ONLY batch_pipeline.attempt_item
    ADD CONSTRAINT attempt_item_pkey PRIMARY KEY (attempt_id, item_id);
ALTER TABLE ONLY batch_pipeline.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (id);
ALTER TABLE ONLY batch_pipeline.attempt
    ADD CONSTRAINT attempt_token_key UNIQUE (token);
ALTER TABLE ONLY batch_pipeline.batch
    ADD CONSTRAINT batch_pkey PRIMARY KEY (id);
ALTER TABLE ONLY batch_pipeline.batch
    ADD CONSTRAINT batch_ranges_do_not_overlap EXCLUDE USING gist (int4range(job_id, job_id, '[]'::text) WITH &&, int8range(first_id, NULLIF(last_id, '9223372036854775807'::bigint), '[]'::text) WITH &&) WHERE (((superseded_at IS NULL) AND (item_ids IS NULL)));
ALTER TABLE ONLY batch_pipeline.batch_state
    ADD CONSTRAINT batch_state_pkey PRIMARY KEY (batch_id);
ALTER TABLE ONLY batch_pipeline.bookmark
    ADD CONSTRAINT bookmark_pkey PRIMARY KEY (job_id, first_id);
ALTER TABLE ONLY batch_pipeline.ceiling_candidate
    ADD CONSTRAINT ceiling_candidate_pkey PRIMARY KEY (scope, meta_table);
ALTER TABLE ONLY batch_pipeline.item
    ADD CONSTRAINT item_pkey PRIMARY KEY (stream, id);
ALTER TABLE ONLY batch_pipeline.item
    ADD CONSTRAINT item_stream_location_key UNIQUE (stream, location);
ALTER TABLE ONLY batch_pipeline.job
    ADD CONSTRAINT job_name_meta_table_key UNIQUE (name, meta_table);
ALTER TABLE ONLY batch_pipeline.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (id);
ALTER TABLE ONLY batch_pipeline.load
    ADD CONSTRAINT load_attempt_id_target_number_key UNIQUE (attempt_id, target, number);
ALTER TABLE ONLY batch_pipeline.load
    ADD CONSTRAINT load_pkey PRIMARY KEY (id);
ALTER TABLE ONLY batch_pipeline.part_file
    ADD CONSTRAINT part_file_pkey PRIMARY KEY (attempt_id, quarantine, "position");
ALTER TABLE ONLY batch_pipeline.part_file
    ADD CONSTRAINT part_file_uri_key UNIQUE (uri);
ALTER TABLE ONLY batch_pipeline.schema_version
    ADD CONSTRAINT schema_version_pkey PRIMARY KEY (job_id, version);
ALTER TABLE ONLY batch_pipeline.target_probe
    ADD CONSTRAINT target_probe_pkey PRIMARY KEY (command, version);
ALTER TABLE ONLY ops.files
    ADD CONSTRAINT files_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.asset_check_executions
    ADD CONSTRAINT asset_check_executions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.asset_daemon_asset_evaluations
    ADD CONSTRAINT asset_daemon_asset_evaluations_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.asset_event_tags
    ADD CONSTRAINT asset_event_tags_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.asset_keys
    ADD CONSTRAINT asset_keys_asset_key_key UNIQUE (asset_key);
ALTER TABLE ONLY public.asset_keys
    ADD CONSTRAINT asset_keys_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.backfill_tags
    ADD CONSTRAINT backfill_tags_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.bulk_actions
    ADD CONSTRAINT bulk_actions_key_key UNIQUE (key);
ALTER TABLE ONLY public.bulk_actions
    ADD CONSTRAINT bulk_actions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.concurrency_limits
    ADD CONSTRAINT concurrency_limits_concurrency_key_key UNIQUE (concurrency_key);
ALTER TABLE ONLY public.concurrency_limits
    ADD CONSTRAINT concurrency_limits_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.concurrency_slots
    ADD CONSTRAINT concurrency_slots_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.daemon_heartbeats
    ADD CONSTRAINT daemon_heartbeats_daemon_type_key UNIQUE (daemon_type);
ALTER TABLE ONLY public.daemon_heartbeats
    ADD CONSTRAINT daemon_heartbeats_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.dynamic_partitions
    ADD CONSTRAINT dynamic_partitions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.event_logs
    ADD CONSTRAINT event_logs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.instance_info
    ADD CONSTRAINT instance_info_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.instigators
    ADD CONSTRAINT instigators_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.instigators
    ADD CONSTRAINT instigators_selector_id_key UNIQUE (selector_id);
ALTER TABLE ONLY public.job_ticks
    ADD CONSTRAINT job_ticks_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_job_origin_id_key UNIQUE (job_origin_id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.kvs
    ADD CONSTRAINT kvs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.pending_steps
    ADD CONSTRAINT pending_steps_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.run_tags
    ADD CONSTRAINT run_tags_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT runs_run_id_key UNIQUE (run_id);
ALTER TABLE ONLY public.secondary_indexes
    ADD CONSTRAINT secondary_indexes_name_key UNIQUE (name);
ALTER TABLE ONLY public.secondary_indexes
    ADD CONSTRAINT secondary_indexes_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.snapshots
    ADD CONSTRAINT snapshots_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.snapshots
    ADD CONSTRAINT snapshots_snapshot_id_key UNIQUE (snapshot_id);
ALTER TABLE ONLY sales.batch_pipeline_column
    ADD CONSTRAINT batch_pipeline_column_pkey PRIMARY KEY (table_name, column_name);
ALTER TABLE ONLY sales.batch_pipeline_load
    ADD CONSTRAINT batch_pipeline_load_pkey PRIMARY KEY (table_name, batch);
CREATE UNIQUE INDEX attempt_one_running_per_batch ON batch_pipeline.attempt USING btree (batch_id) WHERE (status = 'running'::text);
CREATE INDEX attempt_publish_number_idx ON batch_pipeline.attempt USING btree (publish_number);
CREATE INDEX batch_job_id_first_id_idx ON batch_pipeline.batch USING btree (job_id, first_id);
CREATE INDEX batch_state_running ON batch_pipeline.batch_state USING btree (job_id) WHERE (state = 'running'::text);
CREATE INDEX batch_state_unfinished ON batch_pipeline.batch_state USING btree (job_id, state, batch_id) WHERE (state = ANY (ARRAY['planned'::text, 'failed'::text, 'interrupted'::text, 'dead'::text]));
CREATE INDEX item_file_idx ON batch_pipeline.item USING btree (stream, split_part(location, '#'::text, 1)) WHERE (strpos(location, '#'::text) > 0);
CREATE UNIQUE INDEX job_one_per_stream ON batch_pipeline.job USING btree (stream) WHERE (kind = 'incremental'::text);
CREATE INDEX job_parent_id_idx ON batch_pipeline.job USING btree (parent_id);
CREATE UNIQUE INDEX load_once_per_target ON batch_pipeline.load USING btree (attempt_id, target) WHERE ((status = 'succeeded'::text) AND (voided_at IS NULL));
CREATE UNIQUE INDEX load_one_running_per_target ON batch_pipeline.load USING btree (stream, target) WHERE (status = 'running'::text);
CREATE INDEX load_stream_id_idx ON batch_pipeline.load USING btree (stream, id);
CREATE INDEX idx_asset_check_executions ON public.asset_check_executions USING btree (asset_key, check_name, materialization_event_storage_id, partition);
CREATE UNIQUE INDEX idx_asset_check_executions_unique ON public.asset_check_executions USING btree (asset_key, check_name, run_id, partition);
CREATE UNIQUE INDEX idx_asset_daemon_asset_evaluations_asset_key_evaluation_id ON public.asset_daemon_asset_evaluations USING btree (asset_key, evaluation_id);
CREATE INDEX idx_asset_event_tags ON public.asset_event_tags USING btree (asset_key, key, value);
CREATE INDEX idx_asset_event_tags_event_id ON public.asset_event_tags USING btree (event_id);
CREATE INDEX idx_backfill_tags_backfill_id ON public.backfill_tags USING btree (backfill_id, id);
CREATE INDEX idx_bulk_actions ON public.bulk_actions USING btree (key);
CREATE INDEX idx_bulk_actions_action_type ON public.bulk_actions USING btree (action_type);
CREATE INDEX idx_bulk_actions_selector_id ON public.bulk_actions USING btree (selector_id);
CREATE INDEX idx_bulk_actions_status ON public.bulk_actions USING btree (status);
CREATE UNIQUE INDEX idx_dynamic_partitions ON public.dynamic_partitions USING btree (partitions_def_name, partition);
CREATE INDEX idx_event_type ON public.event_logs USING btree (dagster_event_type, id);
CREATE INDEX idx_events_by_asset ON public.event_logs USING btree (asset_key, dagster_event_type, id) WHERE (asset_key IS NOT NULL);
CREATE INDEX idx_events_by_asset_partition ON public.event_logs USING btree (asset_key, dagster_event_type, partition, id) WHERE ((asset_key IS NOT NULL) AND (partition IS NOT NULL));
CREATE INDEX idx_events_by_run_id ON public.event_logs USING btree (run_id, id);
CREATE INDEX idx_job_tick_status ON public.job_ticks USING btree (job_origin_id, status);
CREATE INDEX idx_job_tick_timestamp ON public.job_ticks USING btree (job_origin_id, "timestamp");
CREATE UNIQUE INDEX idx_kvs_keys_unique ON public.kvs USING btree (key);
CREATE UNIQUE INDEX idx_pending_steps ON public.pending_steps USING btree (concurrency_key, run_id, step_key);
CREATE INDEX idx_run_partitions ON public.runs USING btree (partition_set, partition);
CREATE INDEX idx_run_range ON public.runs USING btree (status, update_timestamp, create_timestamp);
CREATE INDEX idx_run_status ON public.runs USING btree (status);
CREATE INDEX idx_run_tags ON public.run_tags USING btree (key, value);
CREATE INDEX idx_run_tags_run_idx ON public.run_tags USING btree (run_id, id);
CREATE INDEX idx_runs_by_backfill_id ON public.runs USING btree (backfill_id, id);
CREATE INDEX idx_runs_by_job ON public.runs USING btree (pipeline_name, id);
CREATE INDEX idx_step_key ON public.event_logs USING btree (step_key);
CREATE INDEX idx_tick_selector_timestamp ON public.job_ticks USING btree (selector_id, "timestamp");
CREATE INDEX ix_asset_daemon_asset_evaluations_evaluation_id ON public.asset_daemon_asset_evaluations USING btree (evaluation_id);
CREATE INDEX ix_instigators_instigator_type ON public.instigators USING btree (instigator_type);
CREATE INDEX ix_job_ticks_job_origin_id ON public.job_ticks USING btree (job_origin_id);
CREATE INDEX ix_jobs_job_type ON public.jobs USING btree (job_type);
CREATE UNIQUE INDEX batch_pipeline_39b005ea1334ae52 ON sales.orders USING btree (order_id);
CREATE INDEX batch_pipeline_91dc5b63bca7ac27 ON sales.orders USING btree (_batch_id);
CREATE INDEX batch_pipeline_9bf4b29f9b814e6d ON sales.orders USING btree (_item_id);
ALTER TABLE ONLY batch_pipeline.attempt
    ADD CONSTRAINT attempt_batch_id_fkey FOREIGN KEY (batch_id) REFERENCES batch_pipeline.batch(id);
ALTER TABLE ONLY batch_pipeline.attempt_item
    ADD CONSTRAINT attempt_item_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES batch_pipeline.attempt(id);
ALTER TABLE ONLY batch_pipeline.batch
    ADD CONSTRAINT batch_job_id_fkey FOREIGN KEY (job_id) REFERENCES batch_pipeline.job(id);
ALTER TABLE ONLY batch_pipeline.batch
    ADD CONSTRAINT batch_parent_id_fkey FOREIGN KEY (parent_id) REFERENCES batch_pipeline.batch(id);
ALTER TABLE ONLY batch_pipeline.batch_state
    ADD CONSTRAINT batch_state_batch_id_fkey FOREIGN KEY (batch_id) REFERENCES batch_pipeline.batch(id);
ALTER TABLE ONLY batch_pipeline.batch_state
    ADD CONSTRAINT batch_state_job_id_fkey FOREIGN KEY (job_id) REFERENCES batch_pipeline.job(id);
ALTER TABLE ONLY batch_pipeline.bookmark
    ADD CONSTRAINT bookmark_job_id_fkey FOREIGN KEY (job_id) REFERENCES batch_pipeline.job(id);
ALTER TABLE ONLY batch_pipeline.job
    ADD CONSTRAINT job_parent_id_fkey FOREIGN KEY (parent_id) REFERENCES batch_pipeline.job(id);
ALTER TABLE ONLY batch_pipeline.load
    ADD CONSTRAINT load_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES batch_pipeline.attempt(id);
ALTER TABLE ONLY batch_pipeline.part_file
    ADD CONSTRAINT part_file_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES batch_pipeline.attempt(id);
ALTER TABLE ONLY batch_pipeline.schema_version
    ADD CONSTRAINT schema_version_job_id_fkey FOREIGN KEY (job_id) REFERENCES batch_pipeline.job(id);
ALTER TABLE ONLY public.runs
    ADD CONSTRAINT fk_runs_snapshot_id_snapshots_snapshot_id FOREIGN KEY (snapshot_id) REFERENCES public.snapshots(snapshot_id);
ALTER TABLE ONLY public.run_tags
    ADD CONSTRAINT run_tags_run_id_fkey FOREIGN KEY (run_id) REFERENCES public.runs(run_id) ON DELETE CASCADE;
