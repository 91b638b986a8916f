"""The only code that changes a cluster: plan, guards, diff, write, apply, read back, log, undo.

Front ends see ``gate`` (the interface) and ``model`` (its words); ``operator`` is the gate.

* From request to plan: ``planning`` (pure) and ``planner`` (with the file open); ``resolve``: who is meant;
  ``edits``: what the file will say; ``guards``: what speaks against it; ``effect``: what the pool will carry;
  ``fields``: what may be set; ``wording``: how all that is said.
* May it be done: ``arming`` (at the start) and ``permission`` (now), ``lock`` (one pdtop a cluster),
  ``beside`` (consoles and verbs beside a service).
* Carrying it out: ``carrying`` (its turn, and what follows from it), ``executing`` (log, file, routers, log),
  ``config_file`` (the write), ``reconcile`` (what routers must be told; pure), ``applying`` (telling them)
  over ``controls`` (connections), ``specs`` (so that a worker comes back as it was), ``restarting`` (a
  router), ``undoing`` (a change of the file).
* Drains: ``draining`` (is this worker empty; pure), ``following`` (all drained workers), ``drain_life`` (a
  drain as an operation; pure).
* Without being asked: ``attending`` (with every snapshot), ``asserting`` (what is due again; pure),
  ``router_mark`` (has a router restarted; pure), ``known_file`` (has somebody else edited the file; pure).
* After a change: ``returning``, with ``readmission`` (is it well back) and ``comparison`` (before and after).
* What lasts: ``state`` (the folder), ``audit`` with ``records`` and ``origin``, ``backups``, ``memory``.
* What the parts of a gate share: ``parts``; what front ends are shown: ``showing``.
"""
