-- The sequences that generate the columns in `uid`, by default or as identity columns.
    SELECT d.refobjid AS oid
      FROM uid
      JOIN pg_catalog.pg_attrdef e ON e.adrelid = uid.attrelid AND e.adnum = uid.attnum
      JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_attrdef'::regclass
                                 AND d.objid = e.oid
                                 AND d.refclassid = 'pg_catalog.pg_class'::regclass
    UNION
    SELECT d.objid
      FROM uid
      JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::regclass
                                 AND d.refclassid = 'pg_catalog.pg_class'::regclass
                                 AND d.refobjid = uid.attrelid AND d.refobjsubid = uid.attnum
                                 AND d.deptype = 'i'
