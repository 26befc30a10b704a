"""Lock files and their tools: `lock` renews them, `sbom` lists images' contents, `audit` finds vulnerabilities."""
