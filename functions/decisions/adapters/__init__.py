"""LoRA adapters: the plan for each engine, and the placement of cold loads and copies."""
