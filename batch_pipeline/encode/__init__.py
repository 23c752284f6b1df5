"""Read, map, validate and write records: what a task does with its files, without Spark.

`encode.task` runs one task: `readers` turn source files into chunks of records, `mapping` applies
stream maps to them, `validation` compares them with the schema, `writers` make part files of them.
"""
