-- Cuts a page of items with weights, in id order, into batches; the open batch is carried from page
-- to page. The rules are those of model/planning.py.
--
-- Returns a row for each batch that ends in the page: `id` is the first item after it. The last row is
-- `open`, with the last id of the page and the unfinished batch, or `unfit` if a weight is NULL or the
-- sum of eight weights exceeds bigint: the caller then reads the rest with slower checks.
--
-- The function lives as long as its connection, which a pooler may pass to another release of this
-- package: a function with another meaning needs another name.
CREATE FUNCTION pg_temp.batch_pipeline_cuts(
    ids bigint[], weights bigint[], open_weight bigint, open_items bigint,
    max_weight bigint, max_items bigint
) RETURNS TABLE (state text, id bigint, weight bigint, items bigint)
LANGUAGE plpgsql AS $$
DECLARE
    room bigint := max_weight - open_weight;
    here integer := 1;
    total bigint;
BEGIN
    items := open_items;
    state := 'closed';
    WHILE here <= cardinality(ids) LOOP
        -- Each expression costs about as much as reading a row, so items are added eight at a time
        -- while all of them fit. Beyond the page a weight is NULL, which never fits.
        total := weights[here] + weights[here + 1] + weights[here + 2] + weights[here + 3]
            + weights[here + 4] + weights[here + 5] + weights[here + 6] + weights[here + 7];
        IF total <= room AND items <= max_items - 8 THEN
            room := room - total;
            items := items + 8;
            here := here + 8;
            CONTINUE;
        END IF;
        FOR one IN here .. least(here + 7, cardinality(ids)) LOOP
            IF weights[one] <= room AND items < max_items THEN
                room := room - weights[one];
                items := items + 1;
            ELSIF weights[one] IS NULL THEN
                state := 'unfit';
                RETURN NEXT;
                RETURN;
            ELSE
                id := ids[one];
                weight := max_weight - room;
                IF items > 0 THEN
                    RETURN NEXT;
                END IF;
                room := max_weight - weights[one];
                items := 1;
            END IF;
        END LOOP;
        here := here + 8;
    END LOOP;
    state := 'open';
    id := ids[cardinality(ids)];
    weight := max_weight - room;
    RETURN NEXT;
EXCEPTION WHEN numeric_value_out_of_range THEN
    state := 'unfit';
    RETURN NEXT;
END
$$
