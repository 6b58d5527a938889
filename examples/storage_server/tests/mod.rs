//! Tests of the server as a whole, by case.
