-- Cuts a page of weighed items, given in id order, and carries the open batch from page to page.
-- The rules are those of model/planning.py; a batch has room for what its limits leave.
--
-- Gives a row for each batch that ends in the page: `id` is the first item beyond it. Then one row
-- more: `open` with the last id of the page and the batch that goes on, or `unfit` when a weight
-- is NULL or eight of them are no bigint together: the rest is for a reader that looks closely.
--
-- It lives as long as its connection, which a pooler may hand to another release of this package:
-- another meaning needs another name.
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
        -- Each expression costs about as much as reading a row does, so items go by eight as long
        -- as all of them fit. Beyond the page a weight is NULL, and NULL does not fit.
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
