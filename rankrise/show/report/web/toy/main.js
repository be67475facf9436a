// Read the payload and fill the page.

import { themeChoice } from "../theme.js";
import { explore } from "./explore.js";
import { Run } from "./runs.js";
import { convergence, descent, fullWeights, perturbations, rank } from "./sections.js";
import { stageTable } from "./stagetable.js";

const payload = JSON.parse(document.getElementById("payload").textContent);
const runs = payload.runs.map((record) => new Run(record));

themeChoice();
explore(runs);
rank(runs);
stageTable(runs);
convergence(runs);
descent(runs);
fullWeights(runs);
perturbations(runs);
document.documentElement.dataset.ready = "yes";
