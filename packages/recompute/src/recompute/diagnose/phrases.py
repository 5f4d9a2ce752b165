"""What people write about a failure, read as evidence: one row per kind of statement.

A log that somebody quotes in a ticket is often one sentence and one error. These rows read the
sentence. They speak only where nothing stronger does: an allocator's numbers, a stack and a series
of measurements all come first (:mod:`recompute.diagnose.verdicts`). Every row was learnt from public
reports; the sources are in docs/reference/verdicts.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from recompute.diagnose.types import Stage, Verdict

Needs = Literal["oom", "no_oom", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhraseRow:
    """One kind of statement."""

    id: str
    verdict: Verdict
    pattern: str
    """For one line, case ignored."""
    stage: Stage = Stage.UNKNOWN
    """Where it happens unless the text says otherwise."""
    needs: Needs = "oom"
    """Whether the input must, or must not, also speak of being out of memory."""
    passing: str
    failing: str


_RECOMPUTE: Final = r"(?:recompute|recomputation|checkpointing|\bAC\b|\bSAC\b)"
_FAILS: Final = (
    r"(?:OOMs?|out[- ]of[- ]memory|OutOfMemory\w*|fails?|failed|crash\w*|dies|died|aborts?)"
)
_LOGITS: Final = r"(?:logits?\b|log[_ -]?probs?\b|cross[- _]?entropy|\bCE\b|lm[_ ]head|vocab(?:ulary)?\b|output (?:layer|head)|entropy)"

PHRASES: Final[tuple[PhraseRow, ...]] = (
    # --- not memory at all
    PhraseRow(
        id="says-host",
        verdict=Verdict.HOST_MEMORY,
        needs="any",
        pattern=r"(?:host|CPU|system|node|container)[ -]?(?:side )?(?:memory|RAM|OOM|out)\b(?! offload)|\bhost RAM\b|GPU or host memory: host|pinned (?:host )?memory (?:grow|exhaust|fail|runs?)|RAM (?:grows|fills|is exhausted|usage)|killed by the (?:kernel|OOM killer)|cgroup limit",
        passing="the dataset packing step runs out of host RAM",
        failing="GPU memory fills up",
    ),
    PhraseRow(
        id="says-hang",
        verdict=Verdict.NOT_OOM,
        needs="no_oom",
        pattern=r"\bhangs?\b|\bhung\b|\bstuck\b|deadlock|watchdog|never (?:ends|returns|finishes)|freez(?:e|es|ing)\b",
        passing="hangs until the watchdog fires",
        failing="runs to the end",
    ),
    PhraseRow(
        id="says-override-dropped",
        verdict=Verdict.NOT_OOM,
        needs="no_oom",
        pattern=r"(?:override|flag|argument|setting|option|False|false|null|value)\b.{0,60}(?:dropped|ignored|no effect|not applied|cannot turn|can't turn|does not turn|overwrit\w+|silently)|(?:cannot|can't) (?:be )?(?:turn(?:ed)?|switch(?:ed)?|disabled?) .{0,30}off",
        passing="the flag is silently ignored, so overlap stays on",
        failing="the flag turns overlap off",
    ),
    PhraseRow(
        id="says-missing-grads",
        verdict=Verdict.RECOMPUTE_FAULT,
        needs="no_oom",
        stage=Stage.BACKWARD,
        pattern=r"no (?:adapter|parameter|param)s? (?:got|gets|get|received?|has|have) (?:a )?grad\w*|without (?:adapter )?gradients?|gradients? (?:is|are|will be) (?:None|missing)|missing gradients?|grad[_ ]norm:? (?:is |was |of |stays )?0(?:\.0+)?\b|adapters? never chang\w+",
        passing="no adapter got a gradient",
        failing="every adapter got a gradient",
    ),
    PhraseRow(
        id="says-thrash",
        verdict=Verdict.THRASH,
        needs="no_oom",
        pattern=r"\bthrash\w*|(?:reserved|memory|card|GPU).{0,40}(?:at|near|close to|hits?|reach\w*) (?:the |its )?(?:limit|capacity|ceiling)|(?:nearly|almost) full.{0,80}(?:slow\w*|step time)|(?:slow\w*|step time).{0,80}(?:nearly|almost) full|alloc\w* retr(?:y|ies)|(?:throughput|TFLOPS?|tokens/s).{0,60}(?:nearly|almost) full",
        passing="reserved memory is at the limit and steps take six times longer",
        failing="steps take long",
    ),
    PhraseRow(
        id="says-numerics",
        verdict=Verdict.NOT_OOM,
        needs="no_oom",
        pattern=r"loss.{0,60}(?:doubled|twice|~ ?2x|differs?|diverg\w+|spik\w+|\bnan\b|wrong|higher|instab\w+)|(?:results?|numerics|gradients?) (?:differ|are wrong|mismatch)|wrong (?:loss|results?|model|gradients?)|training instabilit\w+|stale gradients?|\bNaN\b",
        passing="the logged aux loss is doubled",
        failing="loss goes down",
    ),
    PhraseRow(
        id="says-slow",
        verdict=Verdict.NOT_OOM,
        needs="no_oom",
        pattern=r"(?:step|iteration) time.{0,30}(?:creeps?|grows?|rises?|increases?|drifts?)|gets? (?:progressively )?slower|slow(?:s|ing)? down over",
        passing="step time creeps up over 10K steps",
        failing="step time is flat",
    ),
    PhraseRow(
        id="says-no-saving",
        verdict=Verdict.NOT_OOM,
        needs="no_oom",
        pattern=r"(?:no|little|almost no|hardly any) (?:memory )?saving|fell only|saves? (?:almost )?nothing|nothing is recomputed|peak (?:rose|fell|went)|matches? zero layers",
        passing="peak allocated fell only a little",
        failing="the peak is 40 GB",
    ),
    PhraseRow(
        id="says-recompute-only",
        verdict=Verdict.RECOMPUTE_FAULT,
        needs="no_oom",
        stage=Stage.UNKNOWN,
        pattern=rf"(?<!no )(?:crash\w*|fails?|error|abort\w*|raises?|dies).{{0,80}}(?:with|under|only when|on) (?:full|selective|{_RECOMPUTE})|(?:full|selective|{_RECOMPUTE}).{{0,40}}(?:crash\w*|aborts?|raises)|\bAC and compile\b",
        passing="crashes on the first step with full recompute only",
        failing="runs with full recompute",
    ),
    # --- memory, but not for want of it
    PhraseRow(
        id="says-free-refused",
        verdict=Verdict.DEVICE_LIMIT,
        needs="any",
        pattern=r"[0-9.]{1,12} ?[GM]i?B free and [0-9.]{1,12} ?[KMG]i?B (?:is |was )?refused|(?:plenty|lots|most) of (?:the )?(?:GPU )?memory (?:is )?(?:still )?free|while .{0,30}(?:GB|GiB) (?:is|are) (?:still )?free|\ballowed (?:clause|limit)|[0-9.]{1,12} ?[KMG]i?B allowed;|memory fraction|per_process_memory_fraction",
        passing="203 GiB free and 2 MiB refused",
        failing="0 bytes free",
    ),
    PhraseRow(
        id="says-capacity-misread",
        verdict=Verdict.DEVICE_LIMIT,
        needs="oom",
        pattern=r"\b(?:APU|iGPU|MIG)\b.{0,40}(?:shows|reports|sees|capacity)|capacity (?:is )?(?:misreported|wrong|detected as)",
        passing="the APU shows 15.24 GiB capacity",
        failing="the GPU shows 80 GiB",
    ),
    PhraseRow(
        id="says-other-process",
        verdict=Verdict.OTHER_PROCESS,
        needs="oom",
        pattern=r"0 bytes in use by this process|unaccounted|(?:other|another|several|multiple|many|stale|zombie|leftover|orphan\w*) (?:python )?process(?:es)?|Process clauses?|co-?located?\b|(?:rollout|inference|vLLM|SGLang) (?:engine|server|worker)s?.{0,40}(?:same|hold|holds|on the|share|keeps?|card|GPU)|shar(?:es?|ing) (?:the|a|one) (?:GPU|card|device)|(?:processes|jobs|ranks|workers) (?:\w+ ){0,2}(?:started|running|launched|placed|land\w*) on (?:the same )?GPU|CUDA_VISIBLE_DEVICES|(?:vLLM|SGLang|engine|notebook|server) (?:takes|uses|holds|occupies|reserves|pre-?allocates)|gpu_memory_utilization|someone else'?s? job|did not (?:release|free) (?:its )?memory after",
        passing="25 GiB is unaccounted",
        failing="all of it is ours",
    ),
    PhraseRow(
        id="says-nccl",
        verdict=Verdict.NON_TORCH_MEMORY,
        needs="any",
        pattern=r"NCCL.{0,50}(?:calloc|alloc\w*|memory|buffers?|cannot get)|(?:cannot|could not|fails? to) (?:create|allocate) .{0,30}(?:NCCL|communicator|cuBLAS|cuDNN)|cuBLAS handle|(?:cache|cached blocks).{0,30}starv\w+|process groups? (?:are|is) re-?created|first iteration after (?:a )?resum\w+|after (?:a )?resume\b.{0,30}OOM|--no-load-optim",
        passing="NCCL cannot get memory because PyTorch holds the cache",
        failing="the network is slow",
    ),
    PhraseRow(
        id="says-graph-pools",
        verdict=Verdict.GRAPH_POOLS,
        stage=Stage.GRAPH_CAPTURE,
        needs="oom",
        pattern=r"CUDA ?graphs?.{0,80}(?:memory|OOM|pool|increase|more|captur)|(?:OOM|out of memory|memory).{0,80}CUDA ?graphs?|cuda[_-]?graphs?\b.{0,60}(?:oom|memory)|graph capture|captur\w+ (?:the |a )?graphs?|private pools? (?:hold|grow|take|dominate|are)|make_graphed_callables|create_cudagraphs",
        passing="with CUDA graphs the same model is out of memory",
        failing="without graphs it fits",
    ),
    PhraseRow(
        id="says-peak-below-card",
        verdict=Verdict.FRAGMENTATION,
        needs="oom",
        pattern=r"(?P<peak>[0-9]{1,12}(?:\.[0-9]{1,12})?) ?Gi?B (?:peak|allocated)?.{0,20}\bon (?:an? )?(?P<card>[0-9]{1,12}(?:\.[0-9]{1,12})?) ?Gi?B",
        passing="OOM with 58.8 GB peak on 80 GB cards",
        failing="OOM at 79 GiB",
    ),
    PhraseRow(
        id="says-reserved-gap",
        verdict=Verdict.FRAGMENTATION,
        needs="oom",
        pattern=r"(?P<peak>[0-9]{1,12}(?:\.[0-9]{1,12})?) ?Gi?B\W{0,3}(?:is |are )?(?:allocated)?.{0,30}(?:but|while|vs\.?|against|and|,) (?:\w+ ){0,2}(?:(?P<card>[0-9]{1,12}(?:\.[0-9]{1,12})?) ?Gi?B (?:is |are )?reserved|reserved (?:\w+ ){0,2}(?P<card2>[0-9]{1,12}(?:\.[0-9]{1,12})?) ?Gi?B)",
        passing="allocated 58 GiB but reserved 78 GiB",
        failing="allocated 77 GiB but reserved 78 GiB",
    ),
    PhraseRow(
        id="says-fragmentation",
        verdict=Verdict.FRAGMENTATION,
        needs="oom",
        pattern=r"fragment(?:ed|ation)\b(?! ?\(https)(?!.{0,20}See documentation)|reserved (?:is |memory )?(?:far|much|well|way) (?:above|larger|higher|more)|reserved.{0,30}(?:climbs|grows|rises|keeps growing).{0,60}allocated.{0,20}(?:flat|stable|steady|constant|stays|remains|near)|allocated.{0,30}(?:flat|stable|steady|constant).{0,60}reserved|large gap between (?:reserved|allocated)|variable (?:sequence )?lengths?.{0,60}reserved",
        passing="allocated stays flat while reserved climbs",
        failing="allocated climbs",
    ),
    PhraseRow(
        id="says-container",
        verdict=Verdict.FRAGMENTATION,
        stage=Stage.GRAPH_CAPTURE,
        needs="oom",
        pattern=r"(?:same|identical) (?:config|recipe|job|script|setup|command)\w*.{0,40}(?:passed|worked|ran|fits?|fitted|trained) (?:\w+ ){0,4}(?:older|previous|old|earlier|last|other) (?:container|image|release|driver|NCCL|torch|version)|(?:container|image|driver|NCCL) (?:upgrade|update|bump|bisect)|after (?:the )?(?:container|image|driver|NCCL) (?:upgrade|update|bump|change)",
        passing="same config passed on the older container",
        failing="a new config",
    ),
    # --- growth
    PhraseRow(
        id="says-leak",
        verdict=Verdict.LEAK,
        needs="oom",
        pattern=r"(?:reference|ref) cycles?|\bleak(?:s|ed|ing|age)?\b|surviv\w+ (?:until|into|across|past) the next|not (?:freed|released|garbage[- ]collected)|never (?:freed|released)|(?:kept|keeps?|held|holds?) alive|memory (?:keeps? |is )?(?:rising|creep\w*|increasing|growing)|grows? (?:by|linearly|every|each|with each|steadily|step by step)|increases? (?:every|each|with every) (?:step|iteration)|accumulat\w+ (?:across|over|every|from step)|(?:retain|store)(?:s|ed)? (?:the )?(?:graph|loss|outputs?) (?:across|every|between)",
        passing="tensors survive until the next iteration",
        failing="memory is flat",
    ),
    PhraseRow(
        id="says-imbalance",
        verdict=Verdict.IMBALANCE,
        needs="oom",
        pattern=r"imbalanc\w+|unbalanced|uneven (?:rout\w+|expert\w*|load|token\w*)|(?:router|routing|expert|token) (?:skew|collapse|load)|skewed (?:rout\w+|expert\w*|token\w*)|hot (?:expert|rank)s?|tokens? per expert|load[- ]balanc\w+|(?:one|a single|some|few) (?:GPU|rank|expert|device)s? (?:to )?(?:accepts?|receiv\w+|gets?) (?:far |many |much |most )?(?:more |of the )?tokens|(?:early|cold|first|beginning).{0,30}(?:training|steps|stage).{0,80}(?:expert|rout|token|MoE)|(?:expert|rout|MoE).{0,80}early (?:in |stage|training)",
        passing="uneven routing sends most tokens to one rank",
        failing="dense model",
    ),
    PhraseRow(
        id="says-slow-growth",
        verdict=Verdict.IMBALANCE,
        needs="oom",
        pattern=r"(?P<from>[0-9]{1,12}(?:\.[0-9]{1,12})?) ?Gi?B (?:grows|grew|climbs|climbed|rises|rose|creeps|goes|drifts) (?:up )?to (?P<to>[0-9]{1,12}(?:\.[0-9]{1,12})?) ?Gi?B over (?:\w+ ){0,3}(?:hundreds|thousands|[0-9]{3,}) ",
        passing="33 GB grows to 80 GB over hundreds of steps",
        failing="33 GB grows to 34 GB in one step",
    ),
    # --- whose memory
    PhraseRow(
        id="says-optimizer",
        verdict=Verdict.OPTIMIZER_STATE,
        stage=Stage.OPTIMIZER_STEP,
        needs="oom",
        pattern=rf"optimizer (?:states?|init\w*|step|memory)|\bmoments?\b.{{0,40}}(?:persist\w*|allocat\w*|FP32|initial)|exp_avg|optimi[sz]er takes|(?:once|when|as soon as|until) (?:the )?optimi[sz]er|Adam (?:states?|moments?)|{_FAILS}.{{0,40}}(?:in|at|during) (?:the )?(?:first )?optimi[sz]er|master (?:weights|params)",
        passing="OOM in the optimizer step",
        failing="OOM in forward",
    ),
    PhraseRow(
        id="says-second-step",
        verdict=Verdict.OPTIMIZER_STATE,
        stage=Stage.FORWARD,
        needs="oom",
        pattern=r"(?:first|step 1|iteration 1|one) ?(?:step|iteration)?\b.{0,60}(?:fits|passes|passed|completes?|works|succeeds|ok|fine)\b.{0,80}(?:next|second|step 2|iteration 2|then|but)|(?:fits|passes|works|fine) (?:in|for|on|at) (?:the )?(?:first|step 1|iteration 1).{0,60}(?:second|next|step 2|iteration 2)|(?:OOMs?|fails?|dies|out of memory).{0,30}(?:in|on|at) (?:the )?(?:second|2nd|step 2|iteration 2)",
        passing="Step 1 fits; the next forward OOMs",
        failing="step 1 OOMs",
    ),
    PhraseRow(
        id="says-compiled-backward",
        verdict=Verdict.ACTIVATION,
        stage=Stage.BACKWARD,
        needs="oom",
        pattern=r"(?:inductor|compiled?|torch\.compile|dynamo|AOTAutograd).{0,60}(?:backward|peak|memory|eager)|empty_strided_cuda|x eager\b",
        passing="OOM inside the inductor backward",
        failing="eager mode",
    ),
    PhraseRow(
        id="says-recompute-costs",
        verdict=Verdict.ACTIVATION,
        needs="oom",
        pattern=rf"(?:fits|works|runs).{{0,40}}without {_RECOMPUTE}.{{0,40}}OOMs? with|OOMs? (?:only )?with (?:selective |full )?{_RECOMPUTE}|{_RECOMPUTE}.{{0,40}}(?:more|higher|raises|increases) (?:\w+ )?(?:memory|peak)",
        passing="Fits without AC, OOMs with selective AC",
        failing="OOMs without AC",
    ),
    PhraseRow(
        id="says-recompute-not-reaching",
        verdict=Verdict.ACTIVATION,
        stage=Stage.FORWARD,
        needs="oom",
        pattern=rf"(?:although|even though|despite|with) {_RECOMPUTE}.{{0,20}}(?:is |being )?(?:on|enabled|set|active)\b|{_RECOMPUTE}.{{0,80}}(?:cleared|dropped|ignored|disabled|bypassed|not (?:applied|reach\w*|active)|silently|has no effect|gated)|eval(?:uation)? mode disables|(?:not|never|in)[ -]?(?:covered|reached|included|wrapped) (?:by|in) {_RECOMPUTE}",
        passing="OOM although recompute is on: the provider cleared it",
        failing="recompute is on and it fits",
    ),
    PhraseRow(
        id="says-moved-rank",
        verdict=Verdict.ACTIVATION,
        needs="oom",
        pattern=r"(?:OOM|failure|peak|wall|out of memory) (?:\w+ )?mov\w+ (?:from \w+ [0-9]{1,12} )?to (?:the |an?other |a different )?(?:\w+ )?(?:rank|stage|GPU)",
        passing="OOM moves to a different rank after enabling recompute",
        failing="OOM on the same rank",
    ),
    PhraseRow(
        id="says-got-further",
        verdict=Verdict.OPTIMIZER_STATE,
        stage=Stage.OPTIMIZER_INIT,
        needs="oom",
        pattern=r"(?:gets?|got|goes|went|runs?|advances?) (?:farther|further|past)\b.{0,60}(?:OOM|out of memory|but|still)",
        passing="gets farther but still OOMs",
        failing="gets slower",
    ),
    PhraseRow(
        id="says-label-no-help",
        verdict=Verdict.ACTIVATION,
        needs="oom",
        pattern=rf"(?:(?:core_attn|moe_act|layernorm|mla_up_proj|mlp|moe|shared_experts)\b|{_RECOMPUTE}).{{0,60}}(?:(?:did|does|do) not (?:lower|reduce|help|change|bring)|(?:gives?|saves?|brings?) (?:little|no|nothing|almost)|no (?:effect|difference|saving))|still OOMs? (?:after|with) (?:\w+ ){{0,3}}(?:core_attn|{_RECOMPUTE})",
        passing="recompute of core_attn did not lower the peak",
        failing="core_attn lowered the peak",
    ),
    PhraseRow(
        id="says-warm-up",
        verdict=Verdict.ACTIVATION,
        stage=Stage.MODEL_BUILD,
        needs="oom",
        pattern=r"before the first (?:batch|step|iteration).{0,40}(?:fusion|warm-?up|jit)|_warmup_jit_function|set_jit_fusion_options|(?:fusion|jit) warm-?up",
        passing="OOM before the first batch, in the fusion warm-up",
        failing="OOM in the first batch",
    ),
    PhraseRow(
        id="says-long-batch",
        verdict=Verdict.ACTIVATION,
        needs="oom",
        pattern=r"(?:long(?:est|er)?|large(?:st)?|huge|outlier) (?:batch|sequence|sample|example|prompt|response|document|input|length)|(?:sequence|data|batch|length) (?:length )?(?:outlier|spike)|max(?:imum)? length (?:batch|sample)|real(?:-| )data\b|eager attention|attention (?:scores|matrix|mask)|S\^2|quadratic",
        passing="OOM near step 10, when the first long batch arrives",
        failing="every batch is short",
    ),
    PhraseRow(
        id="says-same-step",
        verdict=Verdict.ACTIVATION,
        needs="oom",
        pattern=r"(?:at|on|in) (?:step|iteration|batch) [0-9]{1,12} (?:every|each) (?:time|run)|(?:always|reproducibly|deterministically|consistently).{0,30}(?:at|on) (?:step|iteration|batch) [0-9]{1,12}|same (?:step|iteration) (?:every|each) (?:time|run)",
        passing="Fails at step 683 every time",
        failing="fails at random",
    ),
    PhraseRow(
        id="says-logits",
        verdict=Verdict.LOGITS,
        stage=Stage.LOSS,
        needs="oom",
        pattern=rf"{_LOGITS}",
        passing="full [B,S,V] logits for every non-fused loss",
        failing="the loss is finite",
    ),
    PhraseRow(
        id="says-gradients",
        verdict=Verdict.GRADIENTS,
        needs="oom",
        pattern=r"grad(?:ient)?[ _-]?buffers?|main_grad|gradient (?:accumulation )?(?:memory|storage|bucket\w*)|FP32 grad(?:ient)?s|grad(?:ient)? (?:sync|reduce|reduction|all-?reduce)|finalize_model_grads",
        passing="the FP32 grad buffer does not fit",
        failing="gradients are clipped",
    ),
    PhraseRow(
        id="says-loading",
        verdict=Verdict.PARAMETERS,
        stage=Stage.MODEL_BUILD,
        needs="oom",
        pattern=r"(?:weights?|model|checkpoint(?: shards?)?) (?:load\w*|initiali[sz]ation|init|build)|load(?:ing)? (?:the )?(?:full |whole )?(?:checkpoint|weights?|model|shards?)|\bat load\b|weights? (?:do|does) not fit|cannot start|(?:building|build|creating|instantiat\w+) (?:the )?model|every (?:process|rank) loads|convert\w* (?:the |a )?(?:checkpoint|weights|model)|(?:checkpoint|weight) conver\w+",
        passing="old parenthesis form during weight load",
        failing="during training",
    ),
    PhraseRow(
        id="says-evaluation",
        verdict=Verdict.ACTIVATION,
        stage=Stage.EVALUATION,
        needs="oom",
        pattern=r"(?:during|in|at|when|on) (?:the )?(?:first )?(?:evaluation|eval|validation)\b",
        passing="OOM during validation",
        failing="OOM in training",
    ),
    PhraseRow(
        id="says-activation",
        verdict=Verdict.ACTIVATION,
        needs="oom",
        pattern=r"\bactivations?\b(?! function)|(?:no|without) recompute|recompute (?:is )?(?:off|unset|not set|disabled)|\b(?:MLA|MLP|FFN|experts?|attention|encoder)\b|\bseq(?:_len|uence)?\W{0,3}[0-9]|(?:at|with) [0-9]{1,4}k\b|(?:sequence|context) length|micro[- ]?batch|long[- ]context|expert intermediate|norm outputs",
        passing="activations fill the card",
        failing="activation function forward",
    ),
    PhraseRow(
        id="says-few-steps",
        verdict=Verdict.OPTIMIZER_STATE,
        stage=Stage.OPTIMIZER_STEP,
        needs="oom",
        pattern=r"after (?:some|a few|several|the first|one|two|[0-9]{1,2}|[0-9]{1,2} ?(?:-|\u2013|to) ?[0-9]{1,2}) (?:few )?(?:iterations?|steps?)\b",
        passing="OOM after some iterations",
        failing="OOM after 4000 iterations",
    ),
    PhraseRow(
        id="says-late",
        verdict=Verdict.ACTIVATION,
        needs="oom",
        pattern=r"after (?:hundreds|thousands|[0-9]{3,}[0-9,]*) (?:of )?(?:iterations?|steps?)|(?:at|in|near|around) (?:step|iteration) (?:[3-9]|[0-9]{2,9})\b|(?:randomly|intermittent\w*|sometimes|occasional\w*|sporadic\w*)",
        passing="OOM after 4000 iterations",
        failing="OOM at once",
    ),
    PhraseRow(
        id="says-full",
        verdict=Verdict.CAPACITY,
        needs="oom",
        pattern=r"true capacity|(?:card|device|GPU) is (?:simply )?full|slack is",
        passing="True capacity: slack is 69 MiB.",
        failing="half the card is free",
    ),
)
"""In order: the first row that applies decides."""

_COMPILED: Final = tuple((row, re.compile(row.pattern, re.IGNORECASE)) for row in PHRASES)

MIN_RATIO: Final = 0.87
"""A peak below this share of the card, and still out of memory, is fragmentation."""

STAGE_PHRASES: Final[tuple[tuple[Stage, re.Pattern[str]], ...]] = tuple(
    (stage, re.compile(pattern, re.IGNORECASE))
    for stage, pattern in (
        (
            Stage.DATA,
            rf"\bget_batch\b|{_FAILS}\b.{{0,20}}\b(?:in|during) (?:the )?(?:data(?:set|loader)?\b|packing)|data(?:set)? packing|dataloader",
        ),
        (
            Stage.MODEL_BUILD,
            rf"{_FAILS}\b.{{0,20}}\b(?:at|during|in|while) (?:the )?(?:model )?(?:load|build|loading|init)\w*",
        ),
        (
            Stage.GRAPH_CAPTURE,
            rf"{_FAILS}\b.{{0,30}}\b(?:at|during|in|while) (?:\w+ ){{0,2}}captur\w*",
        ),
        (
            Stage.CHECKPOINT,
            rf"{_FAILS}\b.{{0,30}}\b(?:at|during|in|while|when) (?:\w+ ){{0,2}}(?:sav\w+|checkpoint sav\w+)|(?:checkpoint sav\w+|sav\w+ (?:of )?(?:the |a )?checkpoint).{{0,30}}(?:OOM|out of memory|fails)",
        ),
        (
            Stage.OPTIMIZER_STEP,
            rf"{_FAILS}\b.{{0,20}}\b(?:in|at|during|inside) (?:the )?(?:first )?optimi[sz]er(?:\.| )?step",
        ),
        (
            Stage.OPTIMIZER_INIT,
            rf"{_FAILS}\b.{{0,30}}\b(?:in|at|during|inside|when) (?:\w+ ){{0,2}}optimi[sz]er(?:[- ]state)?[- ]init\w*",
        ),
        (
            Stage.GRAD_SYNC,
            r"(?:first )?grad(?:ient)?[ _-](?:sync|reduction|all-?reduce)|finalize_model_grads",
        ),
        (
            Stage.BACKWARD,
            rf"{_FAILS}\b,? (?:\w+ ){{0,2}}(?:in|during|inside|at) (?:the )?(?:\w+ ){{0,2}}backward|backward (?:pass )?{_FAILS}",
        ),
        (
            Stage.FORWARD,
            rf"{_FAILS}\b,? (?:\w+ ){{0,2}}(?:in|during|inside|at) (?:the )?(?:\w+ ){{0,2}}forward|forward (?:pass )?(?:OOMs?|fails|crashes|dies)",
        ),
        (
            Stage.LOSS,
            rf"{_FAILS}\b.{{0,20}}\b(?:in|during|inside|at) (?:the )?(?:\w+ ){{0,2}}(?:loss|cross[- _]?entropy|log_?probs)",
        ),
        (
            Stage.EVALUATION,
            rf"{_FAILS}\b.{{0,20}}\b(?:in|during|inside|at) (?:the )?(?:eval|validation)\w*",
        ),
    )
)
"""Where a sentence says that it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhraseHit:
    """A row that took a line."""

    row: PhraseRow
    line: int
    text: str
    values: tuple[tuple[str, float], ...] = ()


def read_phrases(text: str, line: int) -> tuple[PhraseHit, ...]:
    """Return every row that takes one line of prose."""
    hits = []
    for row, pattern in _COMPILED:
        match = pattern.search(text)
        if match is None:
            continue
        values = tuple((name, float(value)) for name, value in match.groupdict().items() if value)
        if _numbers_agree(row.id, dict(values)):
            hits.append(PhraseHit(row=row, line=line, text=text, values=values))
    return tuple(hits)


def stage_in_prose(text: str) -> Stage:
    """Return the stage that a sentence names as the place of failure."""
    for stage, pattern in STAGE_PHRASES:
        if pattern.search(text) is not None:
            return stage
    return Stage.UNKNOWN


def _numbers_agree(row_id: str, values: dict[str, float]) -> bool:
    """Check the rows whose pattern holds numbers: a peak on a card, growth from and to."""
    match row_id:
        case "says-peak-below-card":
            return 0 < values["peak"] < MIN_RATIO * values["card"]
        case "says-reserved-gap":
            return 0 < values["peak"] < MIN_RATIO * values.get("card", values.get("card2", 0))
        case "says-slow-growth":
            return values["to"] > 1.3 * values["from"] > 0
        case _:
            return True


def is_prose(text: str) -> bool:
    """Tell whether a line reads like a sentence, not like a log's record or code."""
    stripped = text.strip()
    if not stripped or len(stripped) > 2000 or _RECORD.search(stripped) is not None:
        return False
    words = _WORD.findall(stripped)
    return len(words) >= 2 or stripped.startswith("(")


_WORD: Final = re.compile(r"[A-Za-z][A-Za-z'_-]+")
_RECORD: Final = re.compile(
    r"^File \"|^Traceback|^\^+$|^~|^[-=*#]{4,}|\.{6,}| \| .* \| |^\s*[\w.]+\s*=\s*\S+$|^\s*self\.|^return |^raise |^import |^from \w+ import"
    r"|^(?:INFO|DEBUG|WARNING|WARN|ERROR)\b|^\[[A-Z0-9]|^[a-z_]+: \S+$"
)
