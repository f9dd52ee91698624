"""The MCP projection: devices as tools of any MCP host, over the client and nothing else."""
