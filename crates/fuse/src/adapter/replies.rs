//! Results as the kernel is told of them.

use fuser::{ReplyAttr, ReplyData, ReplyEmpty, ReplyWrite, ReplyXattr};
use rustix::io::Errno;
use volume::Attributes;

use crate::convert::{self, VALID, errno};

pub(super) fn attributes(reply: ReplyAttr, result: Result<Attributes, Errno>) {
    match result {
        Ok(found) => reply.attr(&VALID, &convert::attributes(found.ino, &found.inode)),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn empty(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn data(reply: ReplyData, result: Result<Vec<u8>, Errno>) {
    match result {
        Ok(data) => reply.data(&data),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn written(reply: ReplyWrite, result: Result<u32, Errno>) {
    match result {
        Ok(bytes) => reply.written(bytes),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn xattr(reply: ReplyXattr, size: u32, result: Result<Vec<u8>, Errno>) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(error)),
    }
}
