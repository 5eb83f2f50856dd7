//! `baton-cluster`: a cluster by hand, for a look at what the tests see.
#![forbid(unsafe_code)]

mod hold;

use anyhow::{Context, Result, bail};
use baton_cluster::{Binaries, client_image, helm, server_image};
use clap::{Parser, Subcommand};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

/// A real Kubernetes cluster on this machine: no Docker, no registry.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Do,
}

#[derive(Debug, Subcommand)]
enum Do {
    /// Start a cluster and leave it running
    Up {
        /// Nodes, 1 to 3
        #[arg(long, default_value_t = 1)]
        nodes: u8,
        /// OCI archives to put on every node, as `make images` writes them
        #[arg(long)]
        image: Vec<PathBuf>,
    },
    /// End all clusters that `up` has started
    Down,
    /// A shell inside a node of the cluster that `up` has started, with KUBECONFIG set and kubectl
    /// there
    Shell {
        /// Its number, from 1
        #[arg(long, default_value_t = 1)]
        node: u8,
        /// A command instead of a shell
        #[arg(last = true)]
        command: Vec<String>,
    },
    /// Make the images of the tests' servers and clients
    Images {
        /// Where to
        #[arg(long, default_value = "target/images")]
        output: PathBuf,
        /// More programs for the client image
        #[arg(long)]
        program: Vec<PathBuf>,
    },
    /// Get or build all parts and say where they are
    Parts,
    /// The process behind `up`
    #[command(hide = true)]
    Hold {
        #[arg(long)]
        nodes: u8,
        #[arg(long)]
        image: Vec<PathBuf>,
    },
}

fn main() -> Result<ExitCode> {
    match Arguments::parse().command {
        Do::Up { nodes, image } => up(nodes, &image)?,
        Do::Down => hold::down_all()?,
        Do::Shell { node, command } => return shell(node, &command),
        Do::Images { output, program } => {
            fs::create_dir_all(&output).with_context(|| format!("making {}", output.display()))?;
            println!("{}", server_image(&output)?.display());
            println!("{}", client_image(&output, &program)?.display());
        }
        Do::Parts => {
            println!("kubernetes {}", Binaries::get()?.kubernetes.display());
            println!("helm       {}", helm()?.display());
        }
        Do::Hold { nodes, image } => hold::hold(nodes, image)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn up(nodes: u8, images: &[PathBuf]) -> Result<()> {
    let binaries = Binaries::get()?;
    let mut holder = Command::new(std::env::current_exe().context("this program's path")?);
    holder.arg("hold").arg(format!("--nodes={nodes}"));
    for image in images {
        // The holder's folder is another.
        let image = image.canonicalize().with_context(|| format!("image {}", image.display()))?;
        holder.arg("--image").arg(image);
    }
    // A pipe of this process's own: the holder outlives whoever reads the output of this one.
    let (output, input) = std::io::pipe().context("making a pipe")?;
    let spawned = holder
        .stdin(Stdio::null())
        .stdout(input.try_clone().context("sharing a pipe")?)
        .stderr(input)
        .current_dir("/")
        .spawn();
    // The command still holds the writing end, and the reading below is to see the holder's end.
    drop(holder);
    let mut child = spawned.context("starting the process that holds the cluster")?;
    let mut kubeconfig = None;
    for line in BufReader::new(output).lines() {
        let line = line.context("waiting for the cluster")?;
        if let Some(path) = line.strip_prefix(hold::READY) {
            kubeconfig = Some(path.to_owned());
            break;
        }
        eprintln!("{line}");
    }
    let Some(kubeconfig) = kubeconfig else {
        bail!("the cluster did not come up ({})", child.wait()?);
    };
    println!("export KUBECONFIG={kubeconfig}");
    println!("alias kubectl='{} kubectl'", binaries.kubernetes.display());
    println!("# `baton-cluster shell` looks inside, `baton-cluster down` ends it");
    Ok(())
}

fn shell(node: u8, command: &[String]) -> Result<ExitCode> {
    let (init, kubeconfig, tools) = hold::find(node)?;
    let words: Vec<String> = if command.is_empty() {
        vec!["/bin/bash".into(), "--norc".into()]
    } else {
        command.to_vec()
    };
    let path = std::env::var("PATH").unwrap_or_default();
    // Replaces this process, so that a terminal's signals reach the shell.
    let error = Command::new("nsenter")
        .arg(format!("--target={init}"))
        .args(["--net", "--mount", "--uts", "--ipc", "--pid", "--"])
        .args(words)
        .env("KUBECONFIG", kubeconfig)
        .env("PATH", format!("{}:{path}", tools.display()))
        .env("PS1", format!("node {node} # "))
        .current_dir("/")
        .exec();
    Err(error).context("starting `nsenter`")
}
