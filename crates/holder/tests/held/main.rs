//! A real holder and its spare, with real programs: this test is also the program that runs either role.

mod cases;
mod place;

use std::{ffi::OsString, process::ExitCode};

use holder::{Config, Role};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let role = [Role::Holder, Role::Spare].into_iter().find(|role| {
        arguments.first().is_some_and(|first| first == place::FOLDER)
            && arguments.last().is_some_and(|last| last == role.argument())
    });
    match role {
        Some(role) => {
            let config = Config { folder: arguments[1].clone().into(), arguments: arguments[..2].to_vec() };
            match holder::run(role, &config) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("{error:?}");
                    ExitCode::FAILURE
                }
            }
        }
        None => run_cases(&arguments),
    }
}

fn run_cases(arguments: &[OsString]) -> ExitCode {
    let wanted: Vec<_> =
        arguments.iter().filter_map(|text| text.to_str()).filter(|text| !text.starts_with('-')).collect();
    let mut failed = 0;
    for (name, case) in cases::CASES {
        if !wanted.is_empty() && !wanted.iter().any(|pattern| name.contains(pattern)) {
            continue;
        }
        let began = std::time::Instant::now();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let outcome = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(case()));
        match outcome {
            Ok(()) => println!("{name}: ok in {} ms", began.elapsed().as_millis()),
            Err(error) => {
                failed += 1;
                println!("{name}: FAILED: {error:?}");
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
