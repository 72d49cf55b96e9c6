"""A server of a published model as an application that YARN keeps alive."""
