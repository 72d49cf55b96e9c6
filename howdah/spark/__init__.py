"""Spark for the ETL and for predictions: sessions, what is shipped to YARN, errors, interrupts.

PySpark is imported where a session is made, never before.
"""
