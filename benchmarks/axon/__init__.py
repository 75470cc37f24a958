"""Remote calls beside other RPC systems and HTTP stacks."""
