// Starts `linckia stdio` for a client that installed this bundle: an installed Linckia, or else the wheel in the bundle,
// by uvx or pipx. It needs nothing but Node.js, which the client has.
"use strict";
const { spawn } = require("node:child_process");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");

// Programs started from a desktop often have a short PATH.
const home = os.homedir();
const folders = [
  ...(process.env.PATH || "").split(path.delimiter),
  path.join(home, ".local/bin"), path.join(home, ".cargo/bin"),
].filter(path.isAbsolute);

function found(name) {
  return folders.map((folder) => path.join(folder, name)).find((file) => {
    try {
      fs.accessSync(file, fs.constants.X_OK);
      return fs.statSync(file).isFile();
    } catch {
      return false;
    }
  });
}

function command() {
  const linckia = found("linckia");
  if (linckia) return [linckia];
  const wheel = fs.readdirSync(__dirname).find((name) => name.endsWith(".whl"));
  if (!wheel) {
    throw new Error("Linckia is not installed; see https://github.com/linckia/linckia#install, and start this again");
  }
  const file = path.join(__dirname, wheel);
  const uvx = found("uvx");
  if (uvx) return [uvx, "--from", file, "linckia"];
  const pipx = found("pipx");
  if (pipx) return [pipx, "run", "--spec", file, "linckia"];
  throw new Error("neither Linckia nor uv is installed; install one of them (https://docs.astral.sh/uv), and start this again");
}

function main() {
  const [program, ...first] = command();
  // A client leaves the variables of empty settings as they are.
  const given = process.argv.slice(2).filter((each) => each && !each.startsWith("${"));
  const env = { ...process.env, PATH: [...new Set(folders)].join(path.delimiter) };
  if (!["true", "false"].includes(env.LINCKIA_READ_ONLY)) delete env.LINCKIA_READ_ONLY;
  const child = spawn(program, [...first, "stdio", ...given], { stdio: "inherit", env });
  for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.on("error", (error) => fail(`${program} cannot be started: ${error.message}`));
  child.on("exit", (code, signal) => {
    process.exitCode = code ?? 128 + (os.constants.signals[signal] || 0);
  });
}

function fail(message) {
  process.stderr.write(`linckia: ${message}\n`);
  process.exitCode = 1;
}

try {
  main();
} catch (error) {
  fail(error.message);
}
