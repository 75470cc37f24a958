"""Remote calls, compared with other RPC systems and HTTP stacks."""
