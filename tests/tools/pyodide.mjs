// Runs a module of tests in the Python of npm's pyodide: node tests/tools/pyodide.mjs FOLDER MODULE, for example .tox/pyodide tests.tools.import_all
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [folder, module] = process.argv.slice(2);
const { loadPyodide } = createRequire(resolve(folder, "package.json"))("pyodide");
const packages = execFileSync(".venv/bin/python", ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], { encoding: "utf-8" }).trim();
const python = await loadPyodide();
python.mountNodeFS("/project", process.cwd());
python.mountNodeFS("/packages", packages);
python.globals.set("module", module);
process.exitCode = await python.runPythonAsync(`
import os, runpy, sys
os.chdir("/project")
sys.path[:0] = ["/project"]
sys.path += ["/packages"]
sys.dont_write_bytecode = True
try:
    runpy.run_module(module, run_name="__main__")
except SystemExit as end:
    code = end.code or 0
code
`);
