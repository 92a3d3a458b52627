//! What is asked of volumes by HTTP.
