"""The locks, renewed by `lock`; `sbom` lists what images hold, `audit` looks for known vulnerabilities."""
