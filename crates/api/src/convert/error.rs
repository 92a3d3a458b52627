//! See [`super`].

use crate::{ErrorCode, ErrorDetail};

impl From<ErrorCode> for model::FailureKind {
    fn from(from: ErrorCode) -> Self {
        match from {
            ErrorCode::InvalidRequest => Self::InvalidRequest,
            ErrorCode::NotFound => Self::NotFound,
            ErrorCode::Conflict => Self::Conflict,
            ErrorCode::CannotFork => Self::CannotFork,
            ErrorCode::NotReady => Self::NotReady,
            ErrorCode::ProgramMissing => Self::ProgramMissing,
            ErrorCode::ProgramNotExecutable => Self::ProgramNotExecutable,
            ErrorCode::StartFailed => Self::StartFailed,
            ErrorCode::Interrupted => Self::Interrupted,
            ErrorCode::TimedOut => Self::TimedOut,
            ErrorCode::Damaged => Self::Damaged,
            ErrorCode::NoSpace => Self::NoSpace,
            ErrorCode::ReadOnly => Self::ReadOnly,
            ErrorCode::StoreUnavailable => Self::StoreUnavailable,
            ErrorCode::Cancelled => Self::Cancelled,
            ErrorCode::Host => Self::Host,
        }
    }
}

impl From<model::FailureKind> for ErrorCode {
    fn from(from: model::FailureKind) -> Self {
        match from {
            model::FailureKind::InvalidRequest => Self::InvalidRequest,
            model::FailureKind::NotFound => Self::NotFound,
            model::FailureKind::Conflict => Self::Conflict,
            model::FailureKind::CannotFork => Self::CannotFork,
            model::FailureKind::NotReady => Self::NotReady,
            model::FailureKind::ProgramMissing => Self::ProgramMissing,
            model::FailureKind::ProgramNotExecutable => Self::ProgramNotExecutable,
            model::FailureKind::StartFailed => Self::StartFailed,
            model::FailureKind::Interrupted => Self::Interrupted,
            model::FailureKind::TimedOut => Self::TimedOut,
            model::FailureKind::Damaged => Self::Damaged,
            model::FailureKind::NoSpace => Self::NoSpace,
            model::FailureKind::ReadOnly => Self::ReadOnly,
            model::FailureKind::StoreUnavailable => Self::StoreUnavailable,
            model::FailureKind::Cancelled => Self::Cancelled,
            model::FailureKind::Host => Self::Host,
        }
    }
}

impl From<ErrorDetail> for model::Failure {
    fn from(ErrorDetail { code, message, hint, details }: ErrorDetail) -> Self {
        Self { kind: code.into(), message, hint, details }
    }
}

impl From<model::Failure> for ErrorDetail {
    fn from(model::Failure { kind, message, hint, details }: model::Failure) -> Self {
        Self { code: kind.into(), message, hint, details }
    }
}
