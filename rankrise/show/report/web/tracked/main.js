// Read the payload and fill the page.

import { themeChoice } from "../theme.js";
import { beside } from "./beside.js";
import { controls } from "./controls.js";
import { heads } from "./heads.js";
import { leading } from "./leading.js";
import { glance, ranks } from "./ranks.js";
import { runList } from "./runlist.js";
import { Run } from "./runs.js";
import { spectra } from "./spectra.js";
import { stages, training } from "./training.js";
import { remains } from "./truncation.js";

const payload = JSON.parse(document.getElementById("payload").textContent);
const runs = payload.runs.map((record) => new Run(record));

themeChoice();
controls(runs, payload.first);
glance(runs);
ranks();
heads();
spectra();
leading();
remains(runs);
training(runs);
stages();
runList(runs);
beside(runs);
document.documentElement.dataset.ready = "yes";
