"""Batches: files of requests that are answered later, in the batch class, even if the gateway fails meanwhile.

    routes        the API that clients see (`shown`)
    service       what all parts share; made once if a store is configured
    log           a batch's state: numbered records in S3, each written once
    conductor     claims batches without an owner; one `run` each
    run           validate, answer, compose; sends a heartbeat, and stops if the batch is cancelled or overtaken
    line_sender   sends one line as an ordinary request, at the batch's pace (`pacer`)
    parts         makes answers durable
    composing     composes output files of parts
    collecting    deletes old objects

The decisions are in `functions.decisions.batch`.
"""
