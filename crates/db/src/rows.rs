//! Columns of rows, by name.

use sqlx::{Row, any::AnyRow};

use crate::{DbError, failed};

/// Reads the columns of a row.
pub trait Fields {
    /// A text.
    fn text(&self, column: &str) -> Result<String, DbError>;
    /// A text that may be missing.
    fn text_or_null(&self, column: &str) -> Result<Option<String>, DbError>;
    /// A number.
    fn number(&self, column: &str) -> Result<i64, DbError>;
    /// A number that may be missing.
    fn number_or_null(&self, column: &str) -> Result<Option<i64>, DbError>;

    /// A number that is never negative.
    fn count(&self, column: &str) -> Result<u64, DbError> {
        let number = self.number(column)?;
        u64::try_from(number)
            .map_err(|_| DbError::Damaged { expected: "number from zero on", value: number.to_string() })
    }

    /// A flag, which is 0 or 1.
    fn flag(&self, column: &str) -> Result<bool, DbError> {
        Ok(self.number(column)? != 0)
    }

    /// A text that is read as a `T`.
    fn parsed<T: std::str::FromStr>(&self, column: &str, expected: &'static str) -> Result<T, DbError> {
        let value = self.text(column)?;
        value.parse().map_err(|_| DbError::Damaged { expected, value })
    }
}

impl Fields for AnyRow {
    fn text(&self, column: &str) -> Result<String, DbError> {
        self.try_get(column).map_err(failed("read a row"))
    }

    fn text_or_null(&self, column: &str) -> Result<Option<String>, DbError> {
        self.try_get(column).map_err(failed("read a row"))
    }

    fn number(&self, column: &str) -> Result<i64, DbError> {
        self.try_get(column).map_err(failed("read a row"))
    }

    fn number_or_null(&self, column: &str) -> Result<Option<i64>, DbError> {
        self.try_get(column).map_err(failed("read a row"))
    }
}
