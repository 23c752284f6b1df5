"""Read, map, validate and write the records of a task's files, without Spark.

`encode.task` runs one task: `readers` turn source files into chunks of records, `mapping` applies
stream maps to them, `validation` compares them with the schema, `writers` write them to part files.
"""
