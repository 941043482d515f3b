// Written by optim_golden.py.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/sgd.h"

namespace lockstep::test {
// clang-format off

inline const std::vector<double> kStart = {1.0, -2.0, 0.5, 0.0};
inline constexpr int kSteps = 6;
// Of element i in step t, counted from 1.
inline double golden_gradient(std::int64_t i, int t) {
  return static_cast<double>((7 * i + 5 * t + 3) % 11 - 5) / 4;
}

struct AdamCase {
  AdamOptions options;
  bool decoupled;
  std::vector<double> result;
};
inline const AdamCase kAdamCases[] = {
    {{.lr = 0.1, .betas = {0.9, 0.999}, .eps = 1e-08, .weight_decay = 0, .amsgrad = false, .maximize = false}, false,
     {0.9549267292505783, -2.0277215094806786, 0.6245833099452237, 0.041860601393024846}},
    {{.lr = 0.1, .betas = {0.9, 0.999}, .eps = 1e-08, .weight_decay = 0, .amsgrad = false, .maximize = true}, false,
     {1.0450732707494215, -1.9722784905193214, 0.37541669005477635, -0.041860601393024846}},
    {{.lr = 0.1, .betas = {0.9, 0.999}, .eps = 1e-08, .weight_decay = 0, .amsgrad = true, .maximize = false}, false,
     {0.9549267292505783, -2.0277215094806786, 0.6245497986533565, 0.04183928650421147}},
    {{.lr = 0.1, .betas = {0.9, 0.999}, .eps = 1e-08, .weight_decay = 0, .amsgrad = true, .maximize = true}, false,
     {1.0450732707494215, -1.9722784905193214, 0.3754502013466436, -0.04183928650421147}},
    {{.lr = 0.1, .betas = {0.9, 0.999}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = false, .maximize = false}, false,
     {0.7876082870063533, -1.655235938319038, 0.5388339697097626, 0.04791481253658159}},
    {{.lr = 0.1, .betas = {0.9, 0.999}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = false, .maximize = false}, true,
     {0.8018040112681649, -1.6979944692318854, 0.5207112073878647, 0.04633546357605599}},
    {{.lr = 0.1, .betas = {0.9, 0.999}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = false, .maximize = true}, false,
     {0.8642761706388848, -1.5325228169927554, 0.32095856773472364, -0.04791481253658159}},
    {{.lr = 0.1, .betas = {0.9, 0.999}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = false, .maximize = true}, true,
     {0.8641399985898346, -1.633893550484114, 0.3122607975411351, -0.04633546357605599}},
    {{.lr = 0.1, .betas = {0.9, 0.999}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = true, .maximize = false}, false,
     {0.7876082870063533, -1.6552617685492244, 0.5388339697097626, 0.04789322683063503}},
    {{.lr = 0.1, .betas = {0.9, 0.999}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = true, .maximize = false}, true,
     {0.8018040112681649, -1.6979944692318854, 0.5206815400821209, 0.04631478813390701}},
    {{.lr = 0.1, .betas = {0.9, 0.999}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = true, .maximize = true}, false,
     {0.8642856493401937, -1.5325315085252043, 0.32095856773472364, -0.04789322683063503}},
    {{.lr = 0.1, .betas = {0.9, 0.999}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = true, .maximize = true}, true,
     {0.8641399985898346, -1.633893550484114, 0.312290464846879, -0.04631478813390701}},
    {{.lr = 0.02, .betas = {0.5, 0.9}, .eps = 0.01, .weight_decay = 0, .amsgrad = false, .maximize = false}, false,
     {1.0114668971622434, -2.0050234166556593, 0.5031946563601399, 0.009096922419675938}},
    {{.lr = 0.02, .betas = {0.5, 0.9}, .eps = 0.01, .weight_decay = 0, .amsgrad = false, .maximize = true}, false,
     {0.9885331028377564, -1.9949765833443405, 0.49680534363986006, -0.009096922419675938}},
    {{.lr = 0.02, .betas = {0.5, 0.9}, .eps = 0.01, .weight_decay = 0, .amsgrad = true, .maximize = false}, false,
     {1.0113775624626564, -2.0050234166556593, 0.5028210573686605, 0.00859716002951272}},
    {{.lr = 0.02, .betas = {0.5, 0.9}, .eps = 0.01, .weight_decay = 0, .amsgrad = true, .maximize = true}, false,
     {0.9886224375373434, -1.9949765833443405, 0.4971789426313396, -0.00859716002951272}},
    {{.lr = 0.02, .betas = {0.5, 0.9}, .eps = 0.01, .weight_decay = 0.3, .amsgrad = false, .maximize = false}, false,
     {0.9755982026116417, -1.9315198834637515, 0.48836672658382546, 0.009150227453666638}},
    {{.lr = 0.02, .betas = {0.5, 0.9}, .eps = 0.01, .weight_decay = 0.3, .amsgrad = false, .maximize = false}, true,
     {0.9763737296451783, -1.9342195103207398, 0.48493932493700154, 0.009104165942270369}},
    {{.lr = 0.02, .betas = {0.5, 0.9}, .eps = 0.01, .weight_decay = 0.3, .amsgrad = false, .maximize = true}, false,
     {0.95691872194487, -1.9079156428365576, 0.4825707897058537, -0.009150227453666638}},
    {{.lr = 0.02, .betas = {0.5, 0.9}, .eps = 0.01, .weight_decay = 0.3, .amsgrad = false, .maximize = true}, true,
     {0.9526976691416028, -1.9239232872528227, 0.479596374456389, -0.009104165942270369}},
    {{.lr = 0.02, .betas = {0.5, 0.9}, .eps = 0.01, .weight_decay = 0.3, .amsgrad = true, .maximize = false}, false,
     {0.9755982026116417, -1.932294907213813, 0.4885316349768124, 0.008650564164593458}},
    {{.lr = 0.02, .betas = {0.5, 0.9}, .eps = 0.01, .weight_decay = 0.3, .amsgrad = true, .maximize = false}, true,
     {0.9762849309537889, -1.9342195103207398, 0.48457603975362906, 0.008608025723669697}},
    {{.lr = 0.02, .betas = {0.5, 0.9}, .eps = 0.01, .weight_decay = 0.3, .amsgrad = true, .maximize = true}, false,
     {0.9575378676425211, -1.9088665134988814, 0.4830946540376277, -0.008650564164593458}},
    {{.lr = 0.02, .betas = {0.5, 0.9}, .eps = 0.01, .weight_decay = 0.3, .amsgrad = true, .maximize = true}, true,
     {0.9527864678329923, -1.9239232872528227, 0.4799596596397618, -0.008608025723669697}},
    {{.lr = 0.1, .betas = {0.0, 0.99}, .eps = 1e-08, .weight_decay = 0, .amsgrad = false, .maximize = false}, false,
     {1.1725347153774843, -2.038212547426323, 0.45449443903602915, -0.00940200177253947}},
    {{.lr = 0.1, .betas = {0.0, 0.99}, .eps = 1e-08, .weight_decay = 0, .amsgrad = false, .maximize = true}, false,
     {0.8274652846225155, -1.961787452573677, 0.5455055609639708, 0.00940200177253947}},
    {{.lr = 0.1, .betas = {0.0, 0.99}, .eps = 1e-08, .weight_decay = 0, .amsgrad = true, .maximize = false}, false,
     {1.1725347153774843, -2.038212547426323, 0.45449443903602915, -0.00940200177253947}},
    {{.lr = 0.1, .betas = {0.0, 0.99}, .eps = 1e-08, .weight_decay = 0, .amsgrad = true, .maximize = true}, false,
     {0.8274652846225155, -1.961787452573677, 0.5455055609639708, 0.00940200177253947}},
    {{.lr = 0.1, .betas = {0.0, 0.99}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = false, .maximize = false}, false,
     {1.0075059615497401, -1.710566895135952, 0.38020588772317004, -0.01731313455202496}},
    {{.lr = 0.1, .betas = {0.0, 0.99}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = false, .maximize = false}, true,
     {1.0080332784411032, -1.7059280456579398, 0.36917240692632114, -0.015150967760528239}},
    {{.lr = 0.1, .betas = {0.0, 0.99}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = false, .maximize = true}, false,
     {0.6936895587069967, -1.5565261143335538, 0.4722803037819965, 0.01731313455202496}},
    {{.lr = 0.1, .betas = {0.0, 0.99}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = false, .maximize = true}, true,
     {0.6579107314168966, -1.6259599740580593, 0.46379959800267867, 0.015150967760528239}},
    {{.lr = 0.1, .betas = {0.0, 0.99}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = true, .maximize = false}, false,
     {1.0075059615497401, -1.7105754208389659, 0.38017071992340545, -0.01728880778599237}},
    {{.lr = 0.1, .betas = {0.0, 0.99}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = true, .maximize = false}, true,
     {1.0080332784411032, -1.7059280456579398, 0.36917240692632114, -0.015150967760528239}},
    {{.lr = 0.1, .betas = {0.0, 0.99}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = true, .maximize = true}, false,
     {0.6936932337964101, -1.556540056607184, 0.4722946223259921, 0.01728880778599237}},
    {{.lr = 0.1, .betas = {0.0, 0.99}, .eps = 1e-08, .weight_decay = 0.3, .amsgrad = true, .maximize = true}, true,
     {0.6579107314168966, -1.6259599740580593, 0.46379959800267867, 0.015150967760528239}},
    {{.lr = 0.1, .betas = {0.2, 0.0}, .eps = 0.001, .weight_decay = 0, .amsgrad = false, .maximize = false}, false,
     {1.037827254997138, -1.9980221093798658, 21.327273650006415, 19.73735243994406}},
    {{.lr = 0.1, .betas = {0.2, 0.0}, .eps = 0.001, .weight_decay = 0, .amsgrad = false, .maximize = true}, false,
     {0.9621727450028623, -2.001977890620134, -20.327273650006415, -19.73735243994406}},
    {{.lr = 0.1, .betas = {0.2, 0.0}, .eps = 0.001, .weight_decay = 0, .amsgrad = true, .maximize = false}, false,
     {1.0737645055999383, -1.9907987284150606, 0.49522654117061277, -0.012313531397955602}},
    {{.lr = 0.1, .betas = {0.2, 0.0}, .eps = 0.001, .weight_decay = 0, .amsgrad = true, .maximize = true}, false,
     {0.9262354944000617, -2.00920127158494, 0.5047734588293872, 0.012313531397955602}},
    {{.lr = 0.1, .betas = {0.2, 0.0}, .eps = 0.001, .weight_decay = 0.3, .amsgrad = false, .maximize = false}, false,
     {0.947277358184689, -1.134448219159994, 0.31493972095235057, 1.5839482248570633}},
    {{.lr = 0.1, .betas = {0.2, 0.0}, .eps = 0.001, .weight_decay = 0.3, .amsgrad = false, .maximize = false}, true,
     {0.8788640244376644, -1.6709415350684096, 18.84887152270142, 19.14667173379579}},
    {{.lr = 0.1, .betas = {0.2, 0.0}, .eps = 0.001, .weight_decay = 0.3, .amsgrad = false, .maximize = true}, false,
     {0.1530958020032756, -1.0214673709771656, 0.2027857054335549, -1.5839482248570633}},
    {{.lr = 0.1, .betas = {0.2, 0.0}, .eps = 0.001, .weight_decay = 0.3, .amsgrad = false, .maximize = true}, true,
     {0.7870799854203352, -1.66094648464759, -18.015899517772414, -19.14667173379579}},
    {{.lr = 0.1, .betas = {0.2, 0.0}, .eps = 0.001, .weight_decay = 0.3, .amsgrad = true, .maximize = false}, false,
     {0.9495820032914888, -1.7502010322672106, 0.45262574917805926, -0.011816197596580993}},
    {{.lr = 0.1, .betas = {0.2, 0.0}, .eps = 0.001, .weight_decay = 0.3, .amsgrad = true, .maximize = false}, true,
     {0.9125558548698363, -1.6621360740944178, 0.40431976268196823, -0.011470284893291813}},
    {{.lr = 0.1, .betas = {0.2, 0.0}, .eps = 0.001, .weight_decay = 0.3, .amsgrad = true, .maximize = true}, false,
     {0.8419042031547638, -1.6704780364543603, 0.44815199075193757, 0.011816197596580993}},
    {{.lr = 0.1, .betas = {0.2, 0.0}, .eps = 0.001, .weight_decay = 0.3, .amsgrad = true, .maximize = true}, true,
     {0.7533881549881634, -1.669751945621582, 0.42865224224703147, 0.011470284893291813}},
};

struct SgdCase {
  SgdOptions options;
  std::vector<double> result;
};
inline const SgdCase kSgdCases[] = {
    {{.lr = 0.1, .momentum = 0, .dampening = 0, .weight_decay = 0, .nesterov = false, .maximize = false},
     {1.1500000000000001, -2.075, 0.47500000000000003, 0.024999999999999994}},
    {{.lr = 0.1, .momentum = 0, .dampening = 0, .weight_decay = 0, .nesterov = false, .maximize = true},
     {0.8500000000000001, -1.9249999999999998, 0.5249999999999999, -0.024999999999999994}},
    {{.lr = 0.1, .momentum = 0, .dampening = 0, .weight_decay = 0.3, .nesterov = false, .maximize = false},
     {0.9841702637515001, -1.7351887902155, 0.38626613067700005, 0.015388254714999966}},
    {{.lr = 0.1, .momentum = 0, .dampening = 0, .weight_decay = 0.3, .nesterov = false, .maximize = true},
     {0.6817737461065001, -1.5966992295004998, 0.4467058742520001, -0.015388254714999966}},
    {{.lr = 0.1, .momentum = 0.9, .dampening = 0, .weight_decay = 0, .nesterov = false, .maximize = false},
     {1.13226325, -2.2311702500000004, 0.58357375, 0.30300550000000004}},
    {{.lr = 0.1, .momentum = 0.9, .dampening = 0, .weight_decay = 0, .nesterov = false, .maximize = true},
     {0.86773675, -1.7688297499999996, 0.41642625000000005, -0.30300550000000004}},
    {{.lr = 0.1, .momentum = 0.9, .dampening = 0, .weight_decay = 0, .nesterov = true, .maximize = false},
     {1.2690369249999998, -2.283053225, 0.5502163750000001, 0.2977049500000002}},
    {{.lr = 0.1, .momentum = 0.9, .dampening = 0, .weight_decay = 0, .nesterov = true, .maximize = true},
     {0.730963075, -1.7169467749999996, 0.4497836249999999, -0.2977049500000002}},
    {{.lr = 0.1, .momentum = 0.9, .dampening = 0, .weight_decay = 0.3, .nesterov = false, .maximize = false},
     {0.6755869845264999, -1.2423761598905, 0.273410284627, 0.28645497746500004}},
    {{.lr = 0.1, .momentum = 0.9, .dampening = 0, .weight_decay = 0.3, .nesterov = false, .maximize = true},
     {0.3580115686315, -0.8248209464255, 0.243388991952, -0.28645497746500004}},
    {{.lr = 0.1, .momentum = 0.9, .dampening = 0, .weight_decay = 0.3, .nesterov = true, .maximize = false},
     {0.744093884445178, -1.1162364935573417, 0.17048921807792214, 0.24923901953925798}},
    {{.lr = 0.1, .momentum = 0.9, .dampening = 0, .weight_decay = 0.3, .nesterov = true, .maximize = true},
     {0.13483869545218924, -0.6416286662373937, 0.2689770718707616, -0.24923901953925798}},
    {{.lr = 0.1, .momentum = 0.9, .dampening = 0.4, .weight_decay = 0, .nesterov = false, .maximize = false},
     {0.93879025, -2.09184625, 0.7844237500000001, 0.08809149999999999}},
    {{.lr = 0.1, .momentum = 0.9, .dampening = 0.4, .weight_decay = 0, .nesterov = false, .maximize = true},
     {1.0612097499999997, -1.9081537499999999, 0.21557625000000002, -0.08809149999999999}},
    {{.lr = 0.1, .momentum = 0.9, .dampening = 0.4, .weight_decay = 0.3, .nesterov = false, .maximize = false},
     {0.6113374245087966, -1.3841550453271174, 0.5579624101840835, 0.09218507801743837}},
    {{.lr = 0.1, .momentum = 0.9, .dampening = 0.4, .weight_decay = 0.3, .nesterov = false, .maximize = true},
     {0.6841014989363213, -1.2067228015631188, 0.08975705153847549, -0.09218507801743837}},
};

inline constexpr double kBaseLr = 0.5;
inline const std::vector<double> kStepLR =
    {0.5, 0.5, 0.5, 0.25,
     0.25, 0.25, 0.125, 0.125,
     0.125, 0.0625, 0.0625, 0.0625};
inline const std::vector<double> kMultiStepLR =
    {0.5, 0.5, 0.05, 0.05,
     0.05, 0.0005000000000000001, 0.0005000000000000001, 0.0005000000000000001,
     0.0005000000000000001, 5.0000000000000016e-05, 5.0000000000000016e-05, 5.0000000000000016e-05};
inline const std::vector<double> kExponentialLR =
    {0.5, 0.45, 0.405, 0.36450000000000005,
     0.32805000000000006, 0.2952450000000001, 0.2657205000000001, 0.23914845000000007,
     0.21523360500000008, 0.19371024450000007, 0.17433922005000008, 0.15690529804500009};
inline const std::vector<double> kCosineAnnealingLR =
    {0.5, 0.45702882373436315, 0.34452882373436317, 0.20547117626563682,
     0.09297117626563685, 0.05, 0.09297117626563683, 0.20547117626563693,
     0.3445288237343634, 0.45702882373436354, 0.5000000000000004, 0.4570288237343637};
inline const std::vector<double> kLinearLR =
    {0.125, 0.1875, 0.25, 0.3125,
     0.375, 0.375, 0.375, 0.375,
     0.375, 0.375, 0.375, 0.375};
inline const std::vector<double> kChained =
    {0.5, 0.45, 0.405, 0.18225000000000002,
     0.16402500000000003, 0.14762250000000005, 0.06643012500000002, 0.05978711250000002,
     0.05380840125000002, 0.02421378056250001, 0.02179240250625001, 0.01961316225562501};
inline const std::vector<double> kWarmUpThenCosine =
    {0.05, 0.1625, 0.275, 0.38750000000000007,
     0.5, 0.4665063509461097, 0.375, 0.25,
     0.12500000000000006, 0.03349364905389032, 0.0, 0.03349364905389032};

// clang-format on
}  // namespace lockstep::test
